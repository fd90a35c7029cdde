"""Coverage is read from records and events alone: nothing that is moved, edited or deleted later changes it."""

from __future__ import annotations

import json
import shutil
import sys
import weakref
from collections import defaultdict
from dataclasses import replace

import numpy as np
import prepare_files as made
import pytest
from refused import refused

from reelworks.annexes.learning import learning
from reelworks.core import results
from reelworks.data.loader import plan_cache, resume, segment_record
from reelworks.data.loader import position as positions
from reelworks.data.run import records
from reelworks.data.run.events import EventLog
from reelworks.data.run.folder import RunFolder
from reelworks.data.run.history import epochs
from reelworks.data.run.records import Outcome, RecordedFailure
from reelworks.training.coverage import clip_history
from reelworks.training.coverage.coverage import ClipEpoch
from reelworks.training.observers.segment_records import RecordKeeper
from reelworks.training.plan import rejections
from reelworks.training.recipe import recipe_file


class Told:
    """A run that tells and records its steps as training does, without training."""

    def __init__(self, folder):
        self.folder = folder
        for i in range(7):
            made.picture(folder / "data" / f"{i}.png", grey=i)
        self.run = RunFolder(folder / "run")
        self.run.create()
        self.log = EventLog(self.run.events_file)
        self.position, self.done = None, 0
        self.start()

    def start(self, **changes):
        """A start by the recipe, whose tables may be others now."""
        self.recipe = made.recipe(self.folder, **changes)
        self.data = made.opened(self.recipe)
        self.spec = self.data.plan_spec(1, 1)
        self.kept = self.run.keep_recipe(recipe_file.dump(self.recipe))
        self.log.write("start", step=self.done, resumed_from=self.done or None, recipe=self.kept, world_size=1)

    def epoch(self, number):
        position = positions.begin_epoch(self.data, self.spec, epoch=number)
        self.begin(replace(position, global_step=self.done))

    def begin(self, position):
        """Record and tell a segment."""
        self.position, self.plan = position, position.plan
        segment_record.begin(self.run, self.data, position, self.kept)
        self.log.write(
            "epoch",
            step=self.done,
            data_restarts=0,
            epoch=position.epoch,
            segment=position.segment,
            planned=position.counts.planned,
            plan_steps=self.plan.num_steps,
            plan=self.plan.digest(),
        )

    def go_on(self, **changes):
        """Resume after changes: what is left of the epoch becomes a segment of its own."""
        cursor = self.position.to_cursor(self.data)
        excluded, aliases = self.position.excluded, self.position.aliases
        self.start(**changes)
        self.begin(resume.resume(self.data, self.spec, self.run, cursor, excluded, aliases)[0])

    def size(self, plan_step):
        where = self.plan.places(int(self.plan.micro_batches(plan_step)[0]))
        return where.stop - where.start

    def step(self, plan_step, *, failed=0, finite=True):
        self.done += 1
        where = self.plan.places(int(self.plan.micro_batches(plan_step)[0]))
        clips = where.stop - where.start - failed
        told = {"plan_step": plan_step, "clips": clips, "applied": finite}
        self.log.write("step", step=self.done, epoch=0, **told)
        for uid, copy in zip(self.plan.uid[where][:failed], self.plan.copy[where], strict=False):
            why = {"copy": int(copy), "repeat_index": 0, "path": "", "reason": "torn"}
            self.log.write("failure", step=self.done, uid=int(uid), **why)
        counts = self.position.counts.add(clips * finite, failed, clips * (not finite), 0)
        self.position = replace(self.position, plan_step=plan_step + 1, global_step=self.done, counts=counts)


@pytest.fixture
def told(tmp_path):
    return Told(tmp_path)


def test_failed_skipped_and_still_to_come(told):
    told.epoch(0)
    told.step(0, failed=1)
    told.step(1, finite=False)
    found = clip_history.cover(told.run)
    (epoch,) = found.epochs
    assert epoch.counts == {"failed": 1, "trained": told.size(0) - 1, "skipped": told.size(1), "not_yet": told.size(2)}
    assert epoch.adds_up
    (torn,) = [clip for clip in found.report(found.places()).clips if clip.epochs[0].became == "failed"]
    assert torn.epochs == [ClipEpoch(data_restarts=0, epoch=0, became="failed", step=1, reason="torn")]


def test_an_account_that_differs_is_a_problem_of_its_segment(told):
    told.epoch(0)
    for plan_step in range(3):
        told.step(plan_step)
    assert clip_history.cover(told.run).epochs[0].adds_up
    end = {"epoch": 0, "planned": 7, "trained": 6, "failed": 1, "skipped": 0}
    told.log.write("epoch_end", step=3, **end)
    found = clip_history.cover(told.run)
    assert not found.epochs[0].adds_up
    assert [problem.split(":")[0] for problem in found.problems] == ["epoch 0, segment 0"] * 2
    assert "6 clips are trained according to the events, 7 according to the records" in found.problems[0]


def plant_a_step_of_no_plan(told):
    told.log.write("step", step=3, epoch=0, plan_step=9, clips=3, applied=True)
    outcome = Outcome(steps=3)
    records.write_outcome(told.run, (0, 0, 0), outcome)


def plant_a_step_of_other_clips(told):
    told.log.write("step", step=3, epoch=0, plan_step=2, clips=told.size(2) + 1, applied=True)


def plant_a_failure_elsewhere(told):
    stranger = RecordedFailure(
        plan_step=0, uid=int(told.plan.uid[told.plan.places(0)][0]) ^ 1, copy_index=0, reason="torn"
    )
    records.write_outcome(told.run, (0, 0, 0), Outcome(steps=2, failures=[stranger]))


def plant_another_total(told):
    told.log.write(
        "epoch", step=2, data_restarts=0, epoch=0, segment=0, planned=8, plan_steps=3, plan=told.plan.digest()
    )


@pytest.mark.parametrize(
    ("plant", "what"),
    [
        (plant_a_step_of_no_plan, "step 3 trained plan step 9, which is not its plan step in the record"),
        (plant_a_step_of_other_clips, "step 3 trained"),
        (plant_a_failure_elsewhere, "failed in plan step 0, which does not contain it"),
        (plant_another_total, "8 clips are planned according to the events, 7 according to the records"),
    ],
)
def test_what_contradicts_the_records_is_named_with_its_segment(told, plant, what):
    told.epoch(0)
    told.step(0)
    told.step(1)
    assert clip_history.cover(told.run).problems == []
    plant(told)
    found = clip_history.cover(told.run)
    assert not found.epochs[0].adds_up
    assert any(p.startswith("epoch 0, segment 0: ") and what in p for p in found.problems), found.problems


def test_clips_that_two_segments_took_are_a_problem_of_the_second(told, tmp_path):
    """A planted segment that forgot what the first one consumed."""
    told.epoch(0)
    told.step(0)
    whole = positions.begin_epoch(told.data, told.spec, epoch=0)
    told.begin(replace(whole, segment=1, global_step=1))
    found = clip_history.cover(told.run)
    assert f"epoch 0, segment 1: {told.size(0)} clips are planned although a step of the epoch" in (
        "\n".join(found.problems)
    )


def test_nothing_that_is_lost_changed_or_moved_later_changes_what_is_told(told, tmp_path):
    """A start on other data, the catalog, the data, recipes, plans and the run folder itself."""
    (tmp_path / "bad.txt").write_text("data/5.png\n", encoding="utf-8")
    made.picture(tmp_path / "data" / "speck.png", (8, 8))
    told.start(exclude_file=str(tmp_path / "bad.txt"))
    told.epoch(0)
    told.step(0)
    before = _told(told.run)
    assert before["epochs"][0]["counts"]["too_small"] == before["epochs"][0]["counts"]["in_exclude_file"] == 1

    def check(run):
        assert _told(run) == before

    (tmp_path / "bad.txt").write_text("data/1.png\n", encoding="utf-8")
    made.picture(tmp_path / "data" / "late.png", grey=99)
    (tmp_path / "data" / "3.png").unlink()
    made.opened(told.recipe)
    check(told.run)
    with refused("unknown-clip", "--clip"):
        clip_history.cover(told.run).places(clip="late.png")
    told.run.keep_recipe(recipe_file.dump(other_recipe(told)))
    check(told.run)
    shutil.rmtree(told.run.path / "catalog")
    shutil.rmtree(tmp_path / "data")
    shutil.rmtree(told.run.recipes_folder)
    shutil.rmtree(told.run.plan_folder)
    (tmp_path / "bad.txt").unlink()
    check(told.run)
    check(RunFolder(told.run.path.rename(tmp_path / "elsewhere")))


def _told(run):
    found = clip_history.cover(run)
    return results.as_json(found.report(found.places()))


def other_recipe(told):
    """One that takes no clip of the run."""
    data = [{"path": str(told.folder / "data"), "filter": "height > 999"}]
    return made.recipe(told.folder, dataset=data)


def test_the_plan_that_is_kept_is_not_asked(told):
    told.epoch(0)
    told.step(0)
    before = clip_history.cover(told.run).epochs[0].step.tolist()
    folder = plan_cache.path(told.run, 0, 0, 0)
    plan_cache.shared(told.run, 0, 0, 0, "", lambda: {"uid": np.zeros(3)})
    assert clip_history.cover(told.run).epochs[0].step.tolist() == before
    (folder / "uid.npy").write_bytes(b"torn")
    assert clip_history.cover(told.run).epochs[0].step.tolist() == before


def test_a_clip_has_one_state_through_all_segments_of_an_epoch(told, tmp_path):
    """Clips come, go, are filtered and held back between segments; each is accounted for once."""
    told.epoch(0)
    told.step(0, failed=1)
    counts = clip_history.cover(told.run).epochs[0].counts
    open_ = [c["path"] for c in _clips(told) if c["epochs"][0]["became"] == "not_yet"]
    (tmp_path / open_[0]).unlink()
    made.picture(tmp_path / "data" / "late.png", grey=99)
    made.picture(tmp_path / "data" / "speck.png", (8, 8))
    (tmp_path / "bad.txt").write_text(open_[1] + "\n", encoding="utf-8")
    told.go_on(exclude_file=str(tmp_path / "bad.txt"))
    assert told.position.segment == 1
    for plan_step in range(told.plan.num_steps):
        told.step(plan_step)
    (epoch,) = clip_history.cover(told.run).epochs
    assert epoch.adds_up
    assert epoch.counts == {
        "trained": counts["trained"] + len(open_) - 1,
        "failed": 1,
        "removed": 1,
        "in_exclude_file": 1,
        "too_small": 1,
    }
    assert epoch.done
    assert sum(epoch.counts.values()) == len(_clips(told)) == 9
    became = {c["path"]: c["epochs"][0]["became"] for c in _clips(told)}
    assert (became["data/late.png"], became["data/speck.png"]) == ("trained", "too_small")


def test_a_clip_of_which_an_earlier_segment_trained_a_use_is_not_listed_as_left_out(told, tmp_path):
    """Whatever became of its other use."""
    tables = {
        "dataset": [{"path": str(tmp_path / "data"), "repeats": 2}],
        "bucket": [{"resolution": "48px", "num_frames": 1, "batch_size": 3, "keep_prob": 0.5}],
    }
    told.start(**tables)
    told.epoch(0)
    told.step(0)
    made.picture(tmp_path / "data" / "late.png", grey=99)
    told.go_on(**tables)
    became = defaultdict(set)
    for clip in _clips(told):
        became[clip["path"]].add(clip["epochs"][0]["became"])
    assert {"trained", "not_drawn"} in became.values()
    rejections.write_recorded(tmp_path / "left-out.jsonl", told.run)
    listed = map(json.loads, (tmp_path / "left-out.jsonl").read_text(encoding="utf-8").splitlines())
    assert {f"data/{clip['path']}" for clip in listed} == {
        path for path, what in became.items() if what == {"not_drawn"}
    }


def test_a_start_within_a_segment_tells_the_end_of_the_former_one_by_the_steps_of_that_one(told, tmp_path):
    """Where the disk took no record of it when it ended."""
    told.epoch(0)
    told.step(0)
    made.picture(tmp_path / "data" / "late.png", grey=99)
    told.go_on()
    told.step(0, finite=False)
    assert records.read_outcome(told.run, (0, 0, 0)) is None
    RecordKeeper(told.run, told.data, told.kept).begin(told.position, set())
    assert records.read_outcome(told.run, (0, 0, 0)) == Outcome(steps=1)


def _clips(told):
    return _told(told.run)["clips"]


def test_coverage_tells_how_a_clip_failed_its_filter_when_it_was_planned(told, tmp_path):
    """By the values and the filter of that time: both are other ones now, and the recipes of the run are gone."""
    told.epoch(0)
    made.picture(tmp_path / "data" / "3.png", (8, 8), grey=3)
    told.go_on(dataset=[{"path": str(tmp_path / "data"), "filter": "height > 9"}])
    shutil.rmtree(told.run.recipes_folder)
    why = {clip["path"]: clip["epochs"][0] for clip in _clips(told)}
    assert why.pop("data/3.png") == {
        "data_restarts": 0,
        "epoch": 0,
        "became": "filtered",
        "reason": "height 8 <= 9; height >= 8 would take it",
    }
    assert {one["became"] for one in why.values()} == {"not_yet"}
    rejections.write_recorded(tmp_path / "left-out.jsonl", told.run)
    (clip,) = map(json.loads, (tmp_path / "left-out.jsonl").read_text(encoding="utf-8").splitlines())
    assert [clip[key] for key in ("path", "failed_filter", "limits_that_take")] == [
        "3.png",
        "height > 9",
        "height >= 8",
    ]


def test_coverage_names_the_clip_that_stands_for_a_near_duplicate(tmp_path):
    """In each epoch another one of a group is trained; by name, after the list has other groups."""
    listed = tmp_path / "data" / "meta.csv"

    def write(groups):
        lines = [f"{i}.png,a cat,{group},{i}" for i, group in enumerate(groups)]
        listed.write_text("\n".join(["path,text,duplicate_group,duplicate_rank", *lines]) + "\n", encoding="utf-8")

    told = Told(tmp_path)
    write([1, 1, "", "", "", "", 2])
    told.start(dataset=[{"path": str(listed), "duplicates": "weight"}])
    for epoch in range(2):
        told.epoch(epoch)
        for plan_step in range(told.plan.num_steps):
            told.step(plan_step)
    write([3, 4, "", "", "", "", 3])
    told.start(dataset=[{"path": str(listed), "duplicates": "best"}])
    told.epoch(2)
    clips = {clip["path"].removeprefix("meta/"): clip["epochs"] for clip in _clips(told)}
    pair = [[one["became"] for one in clips[name]][:2] for name in ("0.png", "1.png")]
    assert sorted(pair) == [["duplicate_turn", "trained"], ["trained", "duplicate_turn"]]
    reasons = {one.get("reason") for name in ("0.png", "1.png") for one in clips[name][:2]}
    assert reasons == {None, "meta/0.png stands for it", "meta/1.png stands for it"}
    assert [clips["6.png"][2][key] for key in ("became", "reason")] == ["duplicate", "meta/0.png stands for it"]
    assert all(epoch.adds_up for epoch in clip_history.cover(told.run).epochs)
    rejections.write_recorded(tmp_path / "left-out.jsonl", told.run)
    (clip,) = map(json.loads, (tmp_path / "left-out.jsonl").read_text(encoding="utf-8").splitlines())
    assert [clip[key] for key in ("path", "reason", "stands_for_it")] == ["6.png", "duplicate", "meta/0.png"]


def test_other_reasons_for_clips_that_are_not_done_than_removal(tmp_path):
    """Fewer repeats; a dataset that is no part of the recipe any more, or went with its folder."""
    made_of = tmp_path / "other"
    for i in range(3):
        made.picture(made_of / f"o{i}.png", grey=50 + i)
    told = Told(tmp_path)
    data, other = {"path": str(tmp_path / "data"), "repeats": 2}, {"path": str(made_of)}
    told.start(dataset=[data, other])
    told.epoch(0)
    told.step(0)
    took = {(c["uid"], c["copy"]) for c in _clips(told) if c["epochs"][0]["became"] == "trained"}
    told.go_on(dataset=[data | {"repeats": 1}])
    for clip in _clips(told):
        if (clip["uid"], clip["copy"]) in took:
            expected = "trained"
        elif clip["path"].startswith("other/"):
            expected = "dataset_removed"
        else:
            expected = "fewer_repeats" if clip["copy"] else "not_yet"
        assert [one["became"] for one in clip["epochs"]] == [expected], clip
    assert clip_history.cover(told.run).epochs[0].adds_up


@pytest.mark.parametrize("how", ["record", "damage", "catalog"])
def test_a_segment_without_its_record_is_named_with_what_events_prove(told, how):
    told.epoch(0)
    told.step(0, failed=1)
    told.step(1, finite=False)
    told.step(2)
    record = records.path(told.run, (0, 0, 0))
    if how == "record":
        shutil.rmtree(record)
    elif how == "damage":
        (record / "places.parquet").write_bytes(b"torn")
    else:
        shutil.rmtree(told.run.coverage_folder / "catalog-000")
    found = clip_history.cover(told.run)
    (epoch,) = found.epochs
    assert not epoch.available
    assert not epoch.adds_up
    assert found.problems == []
    assert epoch.planned == 7
    assert epoch.counts == {}
    (lost,) = epoch.lost
    assert (lost.segment, lost.steps, lost.failed) == (0, 3, 1)
    assert lost.trained == told.size(0) - 1 + told.size(2)
    what = {"record": "does not exist", "damage": "places.parquet", "catalog": "catalog-000"}[how]
    assert record.name in str(lost) or how == "catalog"
    assert what in str(lost)


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_other_segments_of_the_epoch_tell_what_they_know_without_it(told, tmp_path, lost):
    """No clip is said to be trained that was not, nor is a step of another segment forgotten."""
    told.epoch(0)
    told.step(0)
    for size in (1, 2):
        told.go_on(bucket=[{"resolution": "48px", "num_frames": 1, "batch_size": size}])
        told.step(0)
    before = {c["uid"]: c["epochs"][0] for c in _clips(told)}
    took = {s.step for s in epochs(told.run)[0].steps[lost]}
    shutil.rmtree(records.path(told.run, (0, 0, lost)))
    (epoch,) = clip_history.cover(told.run).epochs
    assert ([one.segment for one in epoch.lost], epoch.problems) == ([lost], [])
    after = {c["uid"]: c["epochs"][0] for c in _clips(told)}
    assert after.keys() == before.keys()
    for uid, was in before.items():
        if was.get("step") in took:
            assert after[uid]["became"] in ("not_available", "not_yet")
        elif "step" in was:
            assert after[uid] == was
        else:
            assert after[uid]["became"] in (was["became"], "not_available")


def test_a_run_that_lost_all_records_is_told_by_its_events(told):
    told.epoch(0)
    told.step(0)
    shutil.rmtree(told.run.coverage_folder)
    (epoch,) = clip_history.cover(told.run).epochs
    assert (epoch.planned, epoch.available) == (7, False)
    (lost,) = epoch.lost
    assert (lost.steps, lost.trained) == (1, told.size(0))


def test_the_verb_tells_what_is_lost_and_fails_where_the_records_contradict_each_other(told, monkeypatch, capsys):
    from reelworks.commands import main

    def typed(*words):
        monkeypatch.setattr(sys, "argv", ["reelworks", "coverage", str(told.run.path), *words])
        with pytest.raises(SystemExit) as left:
            main.main()
        said = capsys.readouterr()
        return said.out + said.err, left.value.code or 0

    told.epoch(0)
    told.step(0)
    text, code = typed()
    assert code == 0
    assert f"7 planned = {told.size(0)} trained + 0 failed + 0 skipped + {7 - told.size(0)} not yet" in text
    records.write_outcome(told.run, (0, 0, 0), Outcome(steps=0))
    text, code = typed()
    assert code == 2
    assert "epoch 0, segment 0: step 1 trained plan step 0" in text
    assert "does NOT add up" in text
    assert "remedy: " in text
    text, code = typed("--json")
    assert code == 2
    assert '"problems"' in text
    shutil.rmtree(records.path(told.run, (0, 0, 0)))
    text, code = typed()
    assert code == 0
    assert "segment 0 has no record" in text
    assert f"1 steps, with {told.size(0)} clips trained" in text


def test_clips_are_found_by_any_end_of_their_path(told, tmp_path):
    told.epoch(0)
    found = clip_history.cover(told.run)
    for asked in ("3.png", "data/3.png", str(tmp_path / "data" / "3.png")):
        assert found.paths(found.places(clip=asked)) == ["data/3.png"]
    with refused("unknown-clip", "--clip"):
        found.places(clip="33.png")


def test_never_trained_names_what_no_epoch_trained(told):
    told.epoch(0)
    told.step(0)
    found = clip_history.cover(told.run)
    never = found.places(never_trained=True)
    assert len(never) == 7 - told.size(0)
    assert (found.epochs[0].step[never] == 0).all()
    told.step(1)
    told.step(2)
    assert clip_history.cover(told.run).places(never_trained=True) == []
    assert np.unique(clip_history.cover(told.run).epochs[0].step).tolist() == [1, 2, 3]


@pytest.mark.parametrize("pruned", [True, False])
def test_never_trained_lists_no_clip_of_which_a_record_is_missing(told, pruned):
    """They may all have been trained: epochs that were removed to save disk space, or lost, tell it no more."""
    told.epoch(0)
    for plan_step in range(told.plan.num_steps):
        told.step(plan_step)
    told.epoch(1)
    if pruned:
        list(records.prune(told.run, 1, {(0, 1)}, lambda key: clip_history.totals(told.run, *key)))
    else:
        shutil.rmtree(records.path(told.run, (0, 0, 0)))
    found = clip_history.cover(told.run)
    assert not found.epochs[0].available
    assert (found.places(never_trained=True), found.maybe_trained()) == ([], 7)
    told.step(0)
    assert clip_history.cover(told.run).maybe_trained() == 7 - told.size(0)


def test_a_run_that_has_not_begun_has_no_epoch_and_no_clip(told):
    found = clip_history.cover(told.run)
    assert found.epochs == []
    assert found.places() == []


def test_a_clip_of_another_catalog_keeps_its_name(told, tmp_path):
    """The catalog is made anew in mid-epoch: rows have other numbers, clips are the same."""
    told.epoch(0)
    told.step(0)
    took = {c["path"]: c["epochs"][0]["step"] for c in _clips(told) if "step" in c["epochs"][0]}
    made.picture(tmp_path / "data" / "0a.png", grey=99)
    shutil.rmtree(told.run.path / "catalog")
    told.go_on()
    for plan_step in range(told.plan.num_steps):
        told.step(plan_step)
    assert sorted(p.name for p in told.run.coverage_folder.glob("catalog-*")) == ["catalog-000", "catalog-001"]
    clips = {c["path"]: c["epochs"][0] for c in _clips(told)}
    assert len(clips) == 8
    assert {one["became"] for one in clips.values()} == {"trained"}
    assert took.items() <= {path: one["step"] for path, one in clips.items()}.items()


def test_a_run_may_have_more_copies_of_catalogs_than_fit_into_a_byte(told):
    """Each start whose catalog was made anew adds one."""
    told.epoch(0)
    (named,) = clip_history.cover(told.run).named
    clips = clip_history._Clips.number([clip_history._SeenRows(named)] * 300)
    assert (len(clips), set(clips.catalog)) == (7, {299})


def test_what_was_learnt_is_told_of_clips_as_the_newest_copy_of_their_catalog_has_them(told):
    told.epoch(0)
    made.picture(told.folder / "data" / "late.png", grey=20)
    told.go_on()
    (named,) = learning._catalogs(told.run)
    assert len(named.uids) == 8


def test_the_account_sorts_its_clips_once_however_many_parts_the_catalog_has(told, monkeypatch):
    for number in range(4):
        made.picture(told.folder / "data" / f"late-{number}.png", grey=20 + number)
        told.start()
    told.epoch(0)
    assert told.data.catalog.version == 5
    searches, among = [], clip_history._among
    monkeypatch.setattr(clip_history, "_among", lambda *keys: (searches.append(1), among(*keys))[1])
    assert clip_history.cover(told.run).epochs[0].counts == {"not_yet": 11}
    assert len(searches) == 1


def test_failures_are_marked_without_a_look_at_all_clips_for_each(told, monkeypatch):
    told.epoch(0)
    for plan_step in range(told.plan.num_steps):
        told.step(plan_step, failed=told.size(plan_step))
    looks = []
    first_uses = records.Record.is_first_use.fget
    monkeypatch.setattr(records.Record, "is_first_use", property(lambda self: (looks.append(1), first_uses(self))[1]))
    (epoch,) = clip_history.cover(told.run).epochs
    assert epoch.counts == {"failed": 7}
    assert len(looks) == 1


def test_the_copy_of_a_catalog_goes_with_the_last_record_that_needs_it(told):
    """A catalog that is made anew before each start, and records of two epochs that may stay."""
    for number in range(4):
        shutil.rmtree(told.run.path / "catalog")
        made.picture(told.folder / "data" / f"late-{number}.png", grey=20 + number)
        told.start(coverage={"max_disk": "0.001MB"})
        told.epoch(number)
        RecordKeeper(told.run, told.data, told.kept).begin(told.position, {(0, max(number - 1, 0))})
        told.step(0)
    kept = [records.read_about(told.run, key).catalog for key in records.keys(told.run)]
    copies = sorted(path.name for path in told.run.coverage_folder.glob("catalog-*"))
    assert copies == kept == ["catalog-002", "catalog-003"]
    told.epoch(3)
    assert records.read_about(told.run, (0, 3, 0)).catalog == "catalog-003"
    found = clip_history.counts(told.run).epochs
    assert [epoch.available for epoch in found] == [False, False, True, True]
    assert [sum(epoch.counts.values()) for epoch in found[2:]] == [10, 11]
    (torn,) = told.run.coverage_folder.glob("segment-000-000002-000/about.json")
    shutil.rmtree(torn.parent.with_name("segment-000-000003-000"))
    torn.write_bytes(b"torn")
    records.drop_catalogs(told.run)
    assert sorted(path.name for path in told.run.coverage_folder.glob("catalog-*")) == copies


def test_an_epoch_of_a_start_reads_no_record_to_find_copies_that_can_go(told, monkeypatch):
    """Only a start, or a record that goes, frees a copy; a run has thousands of epochs."""
    calls = []
    monkeypatch.setattr(records, "drop_catalogs", calls.append)
    keeper = RecordKeeper(told.run, told.data, told.kept)
    for number in range(3):
        told.epoch(number)
        keeper.begin(told.position, set())
    assert calls == [told.run]


def test_the_account_holds_the_records_of_one_epoch_at_a_time(told, monkeypatch):
    """And of the clips only those that were asked for."""
    for number in range(6):
        told.epoch(number)
    held, most, read = [], [], records.read

    def watched(*asked):
        record = read(*asked)
        held.append(weakref.ref(record))
        most.append(sum(one() is not None for one in held))
        return record

    whole = clip_history.cover(told.run)
    monkeypatch.setattr(records, "read", watched)
    assert results.as_json(clip_history.counts(told.run).epochs) == results.as_json(whole.epochs)
    assert len(held) == 6  # each once where they are small
    monkeypatch.setattr(clip_history, "_FEW_CLIPS", 0)
    held.clear(), most.clear()
    counted = clip_history.counts(told.run)
    assert max(most) <= 3  # beside the last one, which is read once
    assert results.as_json(counted.epochs) == results.as_json(whole.epochs)
    assert {epoch.state.nbytes + epoch.step.nbytes for epoch in counted.epochs} == {0}
    (place,) = whole.places(clip="3.png")
    one = clip_history.cover(told.run, "3.png")
    assert {len(epoch.state) for epoch in one.epochs} == {1}
    assert one.report(one.places(clip="3.png")).clips == whole.report([place]).clips


def test_an_alias_names_the_clip_that_it_was(told, tmp_path):
    """A dataset was renamed: its clips have one line each, and are found by both names."""
    told.epoch(0)
    told.step(0)
    (tmp_path / "data").rename(tmp_path / "film")
    told.go_on(dataset=[{"path": str(tmp_path / "film")}])
    assert told.position.aliases
    found = clip_history.cover(told.run)
    assert len(found.places()) == 7
    for asked in ("data/3.png", "film/3.png", "3.png"):
        assert found.paths(found.places(clip=asked)) == ["film/3.png"]
    assert found.epochs[0].adds_up


def test_a_clip_is_called_as_in_the_latest_segment_that_holds(told, tmp_path):
    """A start swapped the names of two datasets and was lost; the next one gave one of them another name."""
    made.picture(tmp_path / "other" / "3.png", grey=99)

    def named(one, other):
        return [{"path": str(tmp_path / "data"), "name": one}, {"path": str(tmp_path / "other"), "name": other}]

    told.start(dataset=named("a", "b"))
    told.epoch(0)
    told.step(0)
    saved, data, keys = told.position, told.data, {c["path"]: c["uid"] for c in _clips(told)}
    told.go_on(dataset=named("b", "a"))
    told.position, told.data, told.done = saved, data, 1
    told.go_on(dataset=named("c", "a"))
    found = {c["path"]: c["uid"] for c in _clips(told)}
    assert (found["c/3.png"], found["a/3.png"]) == (keys["a/3.png"], keys["b/3.png"])
    assert len(found) == 8


def test_why_a_clip_left_an_epoch_is_told_by_what_its_dataset_was_called_then(told, tmp_path):
    """Its file is removed, and comes back an epoch later with its dataset, which was renamed meanwhile."""
    told.epoch(0)
    told.step(0)
    gone = next(c["path"] for c in _clips(told) if c["epochs"][0]["became"] == "not_yet")
    shutil.move(tmp_path / gone, tmp_path / "kept.png")
    told.go_on()
    for plan_step in range(told.plan.num_steps):
        told.step(plan_step)
    told.epoch(1)
    shutil.move(tmp_path / "kept.png", tmp_path / gone)
    (tmp_path / "data").rename(tmp_path / "film")
    told.go_on(dataset=[{"path": str(tmp_path / "film")}])
    (clip,) = [c for c in _clips(told) if c["path"] == gone.replace("data/", "film/")]
    assert [one["became"] for one in clip["epochs"]] == ["removed", "not_yet"]
    assert len(_clips(told)) == 7
