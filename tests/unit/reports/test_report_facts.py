import dataclasses
import json
import math
from dataclasses import replace
from pathlib import Path

import fabricate
import numpy as np
import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st
from plan_summaries import bucket, summary

from reelworks.core import units
from reelworks.data.buckets.assign import Reason
from reelworks.data.run import lock
from reelworks.data.run.folder import RunFolder
from reelworks.reports import plots, previews, run_data, run_facts, status
from reelworks.reports.run_data import RunData
from reelworks.training.coverage import speed
from reelworks.training.coverage.coverage import EpochCoverage, Lost
from reelworks.training.plan.plan_report import CatalogCounts


def told(*events, summary=None, on_disk=(), pinned=(), coverage=None):
    events = [{"v": 1, "time": float(i), **event} for i, event in enumerate(events)]
    total = speed.total(speed.of_step(event) for event in events if event["kind"] == "step")
    return RunData(
        path=Path("run"), info={}, summary=summary, recipe="", environment={}, all_events=events,
        events=events, on_disk=frozenset(on_disk), pinned=frozenset(pinned), coverage=coverage or [], speed=total,
        repeated_steps=0,
    )  # fmt: skip


def step(number, epoch=0, clips=4, **more):
    return {"kind": "step", "step": number, "epoch": epoch, "clips": clips, "seconds": 0.5, "loss": 1.0, **more}


def account(number, *, ended=True, lost=(), problems=(), **counts):
    none = np.zeros(0)
    return EpochCoverage(0, number, 9, counts, ended, list(lost), list(problems), none, none)


def test_coverage_adds_up_or_says_that_it_does_not():
    accounts = [
        account(0, trained=7, failed=1, skipped=1),
        account(1, trained=7, skipped=1, problems=["epoch 1, segment 0: a clip is missing"]),
        account(2, lost=[Lost(0, "it is not there", steps=2, trained=5, failed=1)]),
        account(3, ended=False, trained=4, not_yet=5),
    ]
    rows = run_facts.coverage(told(coverage=accounts))
    assert [(row.name, row.trained, row.state) for row in rows] == [
        ("3", 4, "under way"),
        ("2", 5, "lost"),
        ("1", 7, "contradiction"),
        ("0", 7, "adds up"),
    ]
    assert "segment 0 has no record (it is not there)" in rows[1].note
    assert rows[2].note == "epoch 1, segment 0: a clip is missing"


def test_the_step_to_use_is_a_card_and_a_moment():
    """Only once likeness has stopped, and copying has not."""
    measured = [
        {"kind": "metrics", "step": i, "values": {"likeness-clip": min(i, 2), "closeness-clip": max(i - 2, 0)}}
        for i in range(8)
    ]
    facts = {fact.label: fact for fact in run_facts.headline(told(*measured))}
    assert facts["Advice"].value == "use step 2"
    assert "closeness rose from 0 to 5" in facts["Advice"].note
    assert "Advice" not in {fact.label for fact in run_facts.headline(told(*measured[:4]))}
    (moment,) = status.history(told({"kind": "stop_advice", "step": 7, "use": 2, "reasons": ["closeness rose"]}))
    assert (moment.step, moment.title, moment.detail) == (7, "Advice", "use step 2: closeness rose")


@pytest.mark.parametrize(("is_note", "tone"), [(False, "warn"), (True, "plain")])
def test_layers_that_learn_nothing_are_a_moment_with_the_words_of_the_log(is_note: bool, tone: str):
    event = {
        "kind": "idle_layers",
        "step": 20,
        "is_note": is_note,
        "message": "the adapter learns nothing in all layers",
    }
    (moment,) = status.history(told(event))
    assert (moment.step, moment.tone, moment.detail) == (20, tone, event["message"])


def test_shares_of_buckets_sum_to_one():
    rows = [bucket(clips, 1, 8, 8, tokens=tokens) for clips, tokens in ((3, 100), (1, 700))]
    a, b = run_facts.buckets(summary(*rows))
    assert (a.share_of_clips, b.share_of_clips) == (0.75, 0.25)
    assert (a.share_of_tokens, b.share_of_tokens) == (0.3, 0.7)


def test_long_lists_of_names_are_cut_but_counted():
    clips = [(f"{i}.mp4", "") for i in range(run_facts.MAX_NAMES + 7)]
    (reason,) = run_facts.reasons(summary(reasons={"odd_new_reason": clips, "too_small": []}))
    assert (len(reason.files), reason.total) == (run_facts.MAX_NAMES, run_facts.MAX_NAMES + 7)
    assert reason.label == "odd new reason"
    torn = [{"kind": "failure", "uid": uid, "path": path, "reason": "torn"} for uid, (path, _) in enumerate(clips)]
    (failed,) = run_facts.failures(told(*torn))
    assert (len(failed.files), failed.total) == (run_facts.MAX_NAMES, run_facts.MAX_NAMES + 7)


def test_a_clip_that_cannot_be_read_counts_once_in_training_and_once_in_validations():
    """However many epochs, repeats of a dataset and places that it fills would show it."""
    lost = {"kind": "failure", "uid": 3, "path": "a.mp4", "reason": "torn", "held_out": True}
    first = {"kind": "failure", "uid": 4, "copy": 0, "repeat_index": 0, "path": "b.mp4", "reason": "torn"}
    again = [first | {"copy": 1}, first | {"repeat_index": 1}, first | {"step": 9}]
    found = run_facts.failures(told(lost, first, *again, lost, first | {"uid": 5, "path": "c.mp4"}))
    assert [(one.name, one.total) for one in found] == [("failed", 2), ("unread", 1)]
    assert [[clip.path for clip in one.files] for one in found] == [["b.mp4", "c.mp4"], ["a.mp4"]]
    assert run_facts.failures(told()) == []


def test_held_out_and_not_drawn_clips_are_not_called_rejected():
    reasons = {name: [("x", "")] for name in ("held_out", "not_drawn", "too_small")}
    plans = {n: summary(reasons=reasons, planned=5, held_out=1, catalog=CatalogCounts(n, n, 0, 0)) for n in (8, 9)}
    assert run_facts.rejected(plans[8]) == 1
    assert run_facts.balance(plans[8]) == "8 = 5 + 1 + 1 + 1"
    assert run_facts.balance(plans[9]) == ""


def test_checkpoints_follow_the_last_word_about_each_step():
    data = told(
        {"kind": "checkpoint", "step": 10, "name": "a", "bytes": 5, "seconds": 0.1},
        {"kind": "checkpoint", "step": 20, "name": "b", "bytes": 5, "seconds": 0.1},
        {"kind": "retention", "step": 20, "kept": [{"step": 20, "reasons": ["the newest"]}],
         "deleted": [{"step": 10, "reasons": ["not among the last 1"]}]},
        {"kind": "checkpoint", "step": 10, "name": "a", "bytes": 6, "seconds": 0.1},
        {"kind": "validation", "step": 10, "loss": 0.5},
        {"kind": "validation", "step": 20, "loss": 0.4},
        on_disk=[10, 30], pinned=[30],
    )  # fmt: skip
    rows = {row.step: row for row in status.checkpoints(data)}
    assert list(rows) == [30, 20, 10]
    assert (rows[10].kept, rows[10].num_bytes, rows[10].on_disk) == (True, 6, True)
    assert (rows[20].reasons, rows[20].on_disk) == (["the newest"], False)
    assert rows[30].reasons == ["pinned"]
    assert status.best_checkpoint(data).step == 20


def test_the_best_checkpoint_is_the_one_that_retention_names():
    best = {"step": 10, "reasons": ["among the last 2", "the best by validation/psnr (31.2)"]}
    data = told(
        {"kind": "validation", "step": 10, "loss": 0.5},
        {"kind": "validation", "step": 20, "loss": 0.1},
        {"kind": "retention", "step": 20, "kept": [best, {"step": 20, "reasons": ["the newest"]}], "deleted": []},
    )
    assert status.best_checkpoint(data).step == 10
    assert status.best_checkpoint(told()) is None


def test_a_clock_that_is_set_back_takes_no_time_back():
    data = told({"kind": "start", "time": 2000.0}, step(1, time=2010.0), step(2, time=500.0), step(3, time=507.0))
    assert status.training_seconds(data) == 17


def test_time_counts_sessions_and_not_the_pauses_between_them():
    data = told(
        {"kind": "start", "time": 100.0},
        step(1, time=130.0),
        {"kind": "start", "time": 1000.0, "resumed_from": 0},
        step(1, time=1010.0),
        {"kind": "stop", "time": 1012.0, "reason": "signal"},
        {"kind": "start", "time": 2000.0, "resumed_from": 1, "stage": {"name": "high", "step": 1}},
    )
    assert status.training_seconds(data) == 42
    assert status.resumes(data) == 1
    titles = [moment.title for moment in status.history(data)]
    assert titles == ["Started", "Interrupted", "Resumed from step 0", "Stopped", "Stage high began"]
    assert status.state(dataclasses.replace(data, all_events=data.all_events[:-1])) == ("stopped by a signal", "plain")


def test_a_crash_is_told_and_its_repeated_steps_are_counted(tmp_path):
    data = run_data.load(fabricate.make(tmp_path / "run", steps=40, every=10, crash_at=17))
    assert data.repeated_steps == 7
    assert [e["step"] for e in data.events_of("step")] == list(range(1, 41))
    crash = [moment for moment in status.history(data) if moment.title == "Interrupted"]
    assert [moment.step for moment in crash] == [17]


def test_long_curves_are_thinned_to_their_means():
    xs, ys = plots.thin(list(range(10_000)), [float(i) for i in range(10_000)])
    assert len(xs) == len(ys) <= plots.MAX_POINTS
    assert xs == sorted(xs)
    assert sum(ys) / len(ys) == pytest.approx(4999.5, rel=1e-3)
    assert plots.thin([1, 2], [0.5, None]) == ([1, 2], [0.5, None])


def test_smoothing_keeps_a_constant_and_passes_gaps_over():
    smooth = plots.smooth([None, 2.0, None, *[2.0] * 200])
    assert smooth[0] is None
    assert all(value == pytest.approx(2.0) for value in smooth[1:])


def test_losses_that_are_not_finite_leave_gaps():
    data = told(step(1, loss=math.nan), step(2, loss=math.inf), step(3, loss=None), step(4, loss=0.5))
    assert plots.loss_curve(data).plot["data"][0]["y"] == [None, None, None, 0.5]


def test_more_buckets_than_colours_stay_in_the_legend():
    data = told(*(step(i, loss_by_bucket={f"b{i % 11}": 1.0}) for i in range(33)))
    traces = plots.loss_by_bucket(data).plot["data"]
    assert len(traces) == 11
    colours = [trace["line"]["color"] for trace in traces if trace["visible"] is True]
    assert len(colours) == len(set(colours)) == plots.COLOURS


def test_many_preview_steps_are_spread_with_both_ends():
    picked = [event["step"] for event in previews._spread({i: {"step": i} for i in range(0, 1000, 10)})]
    assert (picked[0], picked[-1], len(picked)) == (990, 0, previews.MAX_PREVIEW_STEPS)
    assert previews._spread({5: {"step": 5}}) == [{"step": 5}]


def test_the_newest_previews_are_shown_however_large_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr(previews, "MAX_PREVIEW_BYTES", 10)
    (tmp_path / "samples").mkdir()
    for number in (20, 40):
        (tmp_path / "samples" / f"{number}.png").write_bytes(b"more than ten bytes")
    events = [{"kind": "samples", "step": n, "files": [f"{n}.png"], "prompts": ["a mug"]} for n in (20, 40)]
    (newest,) = previews.of_run(dataclasses.replace(told(*events), path=tmp_path))
    assert (newest.step, [one.prompt for one in newest.previews]) == (40, ["a mug"])
    assert newest.previews[0].uri


@given(st.floats(1, 1e15), st.integers(2, 6))
def test_no_number_is_told_with_an_exponent(value, digits):
    size, unit = units.size(value).split()
    assert float(size.replace(",", "")) * units._SIZES[unit] == pytest.approx(value, rel=0.006)
    told = units.number(value, digits)
    assert "e" not in told
    assert float(told.replace(",", "")) == pytest.approx(value, rel=0.6 * 10 ** (1 - digits))


@pytest.mark.parametrize(("text", "expected"), [
    (units.size(999), "999 B"), (units.size(999_700), "1 MB"), (units.size(8_412_330), "8.41 MB"), (units.size(2.5e12), "2.5 TB"),
    (units.duration(3.21), "3.2 s"), (units.duration(201), "3 min 21 s"), (units.duration(7325), "2 h 02 min"),
    (units.duration(200_000), "2 d 7 h"), (units.duration(-3600), "0.0 s"), (units.count(1234567), "1,234,567"), (units.loss(0.3), "0.3000"),
    (units.loss(1.5e-5), "1.5e-05"), (units.loss(None), "–"), (units.plural(1, "clip"), "1 clip"),
    *((units.verb(1, many), one) for one, many in (("is", "are"), ("was", "were"), ("has", "have"), ("fits", "fit"))),
    (units.verb(0, "are"), "are"), (units.verb(2, "have"), "have"),
    (units.duration(59.97), "1 min 00 s"), (units.moment(0), "1970-01-01 00:00:00 UTC"), (units.percent(0.1234), "12.3 %"),
])  # fmt: skip
def test_numbers_read_as_people_write_them(text, expected):
    assert text == expected


@pytest.mark.parametrize(
    ("rate", "expected"),
    [(1e-4, "1e-4"), (5e-5, "5e-5"), (0.00025, "2.5e-4"), (0.001, "1e-3"), (0.02, "0.02"), (1.0, "1"), (0, "0")],
)
def test_a_learning_rate_has_one_form(rate, expected):
    assert units.learning_rate(rate) == expected


@pytest.mark.parametrize(("wait", "advises"), [(0.09, False), (0.11, True), (0.5, True)])
def test_a_run_that_waits_for_clips_is_told_what_helps(wait, advises):
    """Steps of half a second; a run of before the measure has no such fact."""
    steps = [step(i, data_wait_seconds=wait, decode_p50_seconds=0.1, decode_p99_seconds=None) for i in range(1, 4)]
    facts = {fact.label: fact for fact in run_facts.headline(told(*steps))}
    assert facts["Waiting for clips"].value == units.percent(wait / 0.5)
    assert ("raise data.num_workers" in facts["Waiting for clips"].note) == advises
    assert "Waiting for clips" not in {fact.label for fact in run_facts.headline(told(step(0)))}


@pytest.mark.parametrize("reason", list(Reason)[1:])
def test_a_reason_is_a_fault_a_choice_or_a_plan_and_says_what_to_do(reason):
    """Of a clip that was left out on purpose nothing is rejected, and nothing has to be repaired."""
    plan = summary(reasons={reason.label: [("a.mp4", "")]})
    facts = {fact.label: fact.value for fact in run_facts.headline(told(summary=plan))}
    (listed,) = run_facts.reasons(plan)
    assert facts["Rejected"] == ("0" if reason.is_chosen or reason.is_planned else "1")
    assert facts.get("Left out by you") == ("1" if reason.is_chosen else None)
    assert listed.label != reason.label or "_" not in reason.label
    assert ("Left out by you" in listed.remedy) == reason.is_chosen
    assert ("To train it" in listed.remedy) == reason.is_chosen
    assert not (reason.is_chosen and "repair" in listed.remedy)


def test_a_chart_of_one_point_shows_it_in_a_range_around_it():
    events = [step(1, learning_rate=5e-5, grad_norm=0.5, data_wait_seconds=0.1)]
    events += [
        {"kind": "validation", "step": 1, "loss": 2.5, "loss_by_time": {"500": 2.0}, "loss_by_bucket": {"a": 1.0}}
    ]
    figures = plots.all_of(told(*events))
    assert {"loss", "validation", "validation-by-bucket", "learning-rate"} < {figure.name for figure in figures}
    for figure in figures:
        assert all(trace["mode"] == "lines+markers" for trace in figure.plot["data"])
        assert figure.plot["layout"]["xaxis"]["range"] == [0, 2]
        assert figure.plot["layout"]["yaxis"]["rangemode"] == "tozero"


@pytest.mark.parametrize("most", [1e-3, 1e-4, 2e-4, 3.3e-5, 6e-4, 1e-7, 0.02, 1.0])
def test_learning_rates_are_written_as_in_recipes_on_axes_and_under_the_pointer(most):
    data = told(*(step(i, learning_rate=most * i / 8) for i in range(9)))
    for figure in (*plots.all_of(data), *plots.overlaid([("a", data), ("b", data)])):
        if figure.name != "learning-rate":
            continue
        axis = figure.plot["layout"]["yaxis"]
        assert 2 <= len(axis["tickvals"]) <= 7
        assert axis["tickvals"][-1] > most / 2
        texts = [*axis["ticktext"], *(text for trace in figure.plot["data"] for text in trace["text"])]
        assert texts == [units.learning_rate(float(text)) for text in texts]
        assert not any("µ" in text or "0.000" in text for text in texts)
        assert [float(text) for text in axis["ticktext"]] == pytest.approx(axis["tickvals"])


def test_parts_of_a_loss_and_blocks_have_their_figures():
    events = [
        step(n, loss_by_timestep={"900-1000": 2.0, "0-100": 1.0}, **blocks)
        for n, blocks in enumerate(({}, {"grad_norm_by_block": {"b.0": 100.0, "rest": 0.0}}, {}))
    ]
    drawn = {figure.name: figure for figure in plots.all_of(told(*events))}
    assert [trace["name"] for trace in drawn["loss-by-timestep"].plot["data"]] == ["t = 0-100", "t = 900-1000"]
    (blocks,) = drawn["grad-norm-by-block"].plot["data"]
    assert (blocks["x"], blocks["y"], blocks["z"]) == ([1], ["b.0", "rest"], [[2.0], [None]])


def test_a_spike_advises_the_last_checkpoint_before_it_unless_it_was_skipped():
    spike = {"kind": "spike", "what": "grad_norm", "bucket": "a", "value": 9.0, "usual": 1.0, "limit": 2.0, "clips": []}
    data = told({**spike, "step": 12, "skipped": False}, {**spike, "step": 20, "skipped": True}, on_disk=(5, 10, 15))
    skipped, reported = run_facts.spikes(data)
    assert (skipped.step, skipped.remedy) == (20, "")
    assert "--resume 10 --set 'train.skip_steps=[[12, 12]]'" in reported.remedy


def test_the_advice_in_a_stage_changes_what_that_stage_leaves_out(monkeypatch):
    """A stage has all steps up to the one at which the next begins; of many spikes, the last are told."""
    monkeypatch.setattr(run_facts, "MAX_SPIKES", 2)
    stages = [{"name": "a"}, {"name": "b", "train": {"skip_steps": [[11, 11]]}}]
    recipe = tomli_w.dumps({"train": {"skip_steps": [[2, 2]]}, "stage": stages})
    starts = [{"kind": "start", "step": s, "stage": {"name": name}} for s, name in ((0, "a"), (10, "b"))]
    spike = {"kind": "spike", "what": "loss", "bucket": "a", "value": 9.0, "usual": 1.0, "limit": 2.0, "clips": []}
    spikes = [{**spike, "step": step, "skipped": False} for step in (3, 10, 12)]
    data = replace(told(*starts, *spikes, on_disk=(5, 10)), recipe=recipe)
    in_b, in_a = run_facts.spikes(data)
    assert "--resume 10 --set 'stage.b.train.skip_steps=[[11, 11], [12, 12]]'" in in_b.remedy
    assert "--resume 5 --set 'stage.a.train.skip_steps=[[2, 2], [10, 10]]'" in in_a.remedy


def test_a_run_that_did_not_stop_is_running_as_long_as_its_lock_is_held(tmp_path):
    run = RunFolder(tmp_path)
    run.create()
    data = replace(told({"kind": "start", "step": 0, "resumed_from": None}), path=tmp_path)
    assert status.state(data) == (status.KILLED, "plain")
    with lock.hold(run.lock_file):
        assert status.state(data) == ("running", "busy")


def test_an_exception_is_told_in_place_of_a_kill():
    data = told({"kind": "start", "step": 0, "resumed_from": None}, step(1), {"kind": "error", "reason": "OSError: full"},
                {"kind": "start", "step": 0, "resumed_from": None})  # fmt: skip
    assert [(m.title, m.detail) for m in status.history(data)][1] == ("Failed", "OSError: full")
    assert (
        status.state(told({"kind": "start", "step": 0}, {"kind": "error", "reason": "OSError: full"}))[0]
        == "ended with an error"
    )


def test_waiting_of_ranks_is_weighed_by_the_time_that_a_comparison_covers():
    """The last one of a run may be short."""
    first = {"planned": 0.1, "measured": 0.2, "seconds_by_rank": [9.0, 9.0], "forward_ms_per_clip": {"480p": 2.0}}
    slow = [{"rank": 1, "host": "there", "factor": 1.5}]
    last = {"planned": 0.5, "measured": 0.6, "seconds_by_rank": [1.0, 1.0], "forward_ms_per_clip": {"480p": 4.0}}
    balances = [{"kind": "balance", "step": 20, **first, "stragglers": []}, {**last, "stragglers": slow}]
    found = run_facts.balance_of_ranks(told(balances[0], {"kind": "balance", "step": 23, **balances[1]}))
    assert (found.planned, found.measured) == (pytest.approx(0.14), pytest.approx(0.24))
    assert found.ms_per_clip == {"480p": 3.0}
    assert [(row.rank, row.host, row.factor, row.times) for row in found.stragglers] == [(1, "there", 1.5, 1)]
    assert run_facts.balance_of_ranks(told()) is None


def test_names_of_stages_lie_within_the_plot():
    """To the right of lines in its left half, to the left of others."""
    stages = [{"name": name, "step": at} for name, at in (("early", 2), ("late", 7))]
    starts = [{"kind": "start", "resumed_from": stage["step"], "stage": stage} for stage in stages]
    lines = plots._resume_lines(told(*starts, *map(step, range(1, 11))))
    assert [(line["x0"], line["label"]["text"], line["label"]["xanchor"]) for line in lines] == [
        (2, "early", "left"),
        (7, "late", "right"),
    ]


@pytest.mark.parametrize("saves", [1, 100, 101, 950])
def test_of_many_saves_ticks_show_some_from_the_first_to_the_last(saves):
    ticks = plots._save_ticks(told(*({"kind": "checkpoint", "step": 10 * i} for i in range(1, saves + 1))))
    steps = [tick["x0"] for tick in ticks]
    assert len(steps) == saves or plots.MAX_MARKERS // 2 < len(steps) <= plots.MAX_MARKERS
    assert (steps[0], saves * 10 - steps[-1] < 10 * saves // plots.MAX_MARKERS + 10) == (10, True)


def test_of_very_many_steps_a_report_holds_few_and_counts_all(tmp_path, monkeypatch):
    run = fabricate.make(tmp_path / "run", steps=40, every=10, crash_at=17)
    events = [json.loads(line) for line in run.events_file.read_text(encoding="utf-8").splitlines()]
    events = [{**e, "applied": False} if (e["kind"], e.get("step")) == ("step", 9) else e for e in events]
    run.events_file.write_text("".join(f"{json.dumps(e)}\n" for e in events), encoding="utf-8")
    whole = run_data.load(run)
    assert len(whole.events_of("step")) == 40
    monkeypatch.setattr(run_data, "_MOST_STEPS", 4)
    monkeypatch.setattr(run_data, "LAST_STEPS", 5)
    few = run_data.load(run)
    steps = [event["step"] for event in few.events_of("step")]
    marked = {event["step"] for event in whole.events_of("spike")}
    marked |= {e["step"] for e in whole.events_of("step") if e.get("applied") is False or "grad_norm_by_block" in e}
    assert {*range(36, 41), *marked} <= set(steps)
    assert len(steps) <= 14 + len(marked)
    assert steps == sorted(steps)
    assert [e for e in few.events if e["kind"] != "step"] == [e for e in whole.events if e["kind"] != "step"]
    assert (few.speed, few.repeated_steps, few.last_step) == (whole.speed, whole.repeated_steps, 40)
    for told in (status.training_seconds, status.resumes, status.state, status.checkpoints):
        assert told(few) == told(whole)
    assert sum(event["kind"] == "step" for event in few.all_events) < 20
