"""Which steps, segments and failures of a run hold, from its events."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pytest

from reelworks.data.run import history, records
from reelworks.data.run.events import EventLog
from reelworks.data.run.folder import RunFolder
from reelworks.data.run.records import About, Outcome, Record, RecordedFailure


def run_with(tmp_path, *events):
    log = EventLog(tmp_path / "events.jsonl")
    for kind, fields in events:
        log.write(kind, **fields)
    return RunFolder(tmp_path)


def start(resumed_from, recipe="a.toml"):
    return "start", {"step": resumed_from or 0, "resumed_from": resumed_from, "recipe": recipe, "world_size": 1}


def epoch(step, number=0, segment=0, planned=9, plan_steps=3, data_restarts=0, plan=None):
    return "epoch", {
        "step": step,
        "data_restarts": data_restarts,
        "epoch": number,
        "segment": segment,
        "planned": planned,
        "plan_steps": plan_steps,
        "plan": plan or f"plan {segment}",
    }


def step(number, plan_step, *, clips=3, applied=True):
    fields = {"step": number, "plan_step": plan_step, "clips": clips, "applied": applied}
    return "step", {**fields, "epoch": 0}


def failure(number, uid, reason="damaged", *, copy=0, repeat_index=0):
    return "failure", {"step": number, "uid": uid, "copy": copy, "repeat_index": repeat_index, "reason": reason}


def rows_by_segment(told):
    return {segment: [s.plan_step for s in steps] for segment, steps in told.steps.items()}


def test_steps_that_a_resume_repeats_count_once_with_their_failures(tmp_path):
    first = [start(None), epoch(0), step(1, 0), step(2, 1), failure(2, 7, "then")]
    again = [start(1), epoch(1), step(2, 1), failure(2, 8, "now"), step(3, 2)]
    end = ("epoch_end", {"step": 3, "epoch": 0, "planned": 9, "trained": 8, "failed": 1, "skipped": 0})
    (told,) = history.epochs(run_with(tmp_path, *first, *again, end))
    assert rows_by_segment(told) == {0: [0, 1, 2]}
    assert {number: [(e["uid"], e["reason"]) for e in found] for number, found in told.failures.items()} == {
        2: [(8, "now")]
    }
    assert told.ended is not None


def test_a_run_killed_before_its_first_checkpoint_begins_from_nothing(tmp_path):
    (told,) = history.epochs(run_with(tmp_path, start(None), epoch(0), step(1, 0), start(None), epoch(0)))
    assert told.steps == {}


def test_steps_belong_to_the_segment_begun_last(tmp_path):
    events = [start(None), epoch(0), step(1, 0), start(1), epoch(1, segment=1, planned=11, plan_steps=4), step(2, 0)]
    (told,) = history.epochs(run_with(tmp_path, *events))
    assert rows_by_segment(told) == {0: [0], 1: [0]}
    assert (told.segment, told.planned, told.plans) == (1, 11, {0: "plan 0", 1: "plan 1"})


def test_how_far_a_segment_went_follows_from_its_first_steps(tmp_path):
    """Skipped steps and failures behind the last step that counts are left out; so is a clip's second showing."""
    events = [
        *(start(None), epoch(0), step(1, 0), failure(1, 7, copy=1), failure(1, 7, repeat_index=1)),
        *(step(2, 1, applied=False), failure(2, 9), failure(2, 8), step(3, 2, clips=0)),
        *(start(3), epoch(3, segment=1), step(4, 0), failure(4, 5)),
    ]
    (told,) = history.epochs(run_with(tmp_path, *events))
    torn = [
        RecordedFailure(plan_step=plan_step, uid=uid, copy_index=copy, reason="damaged")
        for plan_step, uid, copy in ((0, 7, 1), (1, 9, 0), (1, 8, 0))
    ]
    assert told.outcome(0, 1) == Outcome(steps=1, skipped=[], failures=torn[:1])
    assert told.outcome(0, 2) == Outcome(steps=2, skipped=[1], failures=torn)
    assert told.outcome(0, 3) == Outcome(steps=3, skipped=[1], failures=torn), "its repeats trained"
    assert [one.uid for one in told.outcome(1, 1).failures] == [5]
    assert told.outcome(2, 0) == Outcome(steps=0)


def test_a_change_undone_goes_back_to_the_former_segment(tmp_path):
    changed = [start(1), epoch(1, segment=1, planned=11), step(2, 0)]
    undone = [start(1), epoch(1), step(2, 1)]
    (told,) = history.epochs(run_with(tmp_path, start(None), epoch(0), step(1, 0), *changed, *undone))
    assert rows_by_segment(told) == {0: [0, 1]}
    assert (told.segment, told.planned) == (0, 9)


def ended(number, trained=3):
    return "epoch_end", {"step": number, "epoch": 0, "planned": trained, "trained": trained, "failed": 0, "skipped": 0}


DONE = [start(None), epoch(0, plan_steps=1), step(1, 0), ended(1), start(1)]
EMPTIED = [epoch(1, segment=1, planned=3, plan_steps=0, plan="none left"), ended(1), epoch(1, number=1), start(1)]
ADDED = epoch(1, segment=1, planned=4, plan_steps=1)


@pytest.mark.parametrize(
    ("after", "has_ended"),
    [
        ([epoch(1, plan_steps=1)], True),  # goes on behind the end
        ([ADDED], False),
        ([*EMPTIED, ADDED], False),  # the former segment of this number had nothing left
        ([ADDED, start(1), *EMPTIED[:-2]], True),
        ([ADDED, start(1), epoch(1, plan_steps=1)], True),  # the change is undone before a step was trained
    ],
)
def test_the_end_of_an_epoch_is_that_of_the_plan_it_follows(tmp_path, after, has_ended):
    (told,) = history.epochs(run_with(tmp_path, *DONE, *after))
    assert (told.ended is not None) == has_ended


def test_a_segment_whose_change_was_undone_is_void(tmp_path):
    (told,) = history.epochs(run_with(tmp_path, *DONE, ADDED, start(1), epoch(1, plan_steps=1)))
    assert (told.segment, told.plans) == (0, {0: "plan 0"})


def test_a_step_was_applied_if_its_event_says_so_whatever_counted_in_it(tmp_path):
    events = [step(1, 0), step(2, 1, applied=False), step(3, 2, clips=0)]
    (told,) = history.epochs(run_with(tmp_path, start(None), epoch(0), *events))
    assert [s.applied for s in told.steps[0]] == [True, False, True]


def test_each_step_has_the_recipe_of_its_start(tmp_path):
    """A recipe that leaves the plan as it is changes in mid-segment, another one begins a segment."""
    first = [start(None), epoch(0), step(1, 0), step(2, 1)]
    same_plan = [start(1, recipe="b.toml"), epoch(1), step(2, 1)]
    other_plan = [start(2, recipe="c.toml"), epoch(2, segment=1), step(3, 0)]
    run = run_with(tmp_path, *first, *same_plan, *other_plan)
    (told,) = history.epochs(run)
    assert {s.step: s.recipe for steps in told.steps.values() for s in steps} == {1: "a.toml", 2: "b.toml", 3: "c.toml"}
    assert [history.recipe_of(run, number).name for number in (1, 2, 3)] == ["a.toml", "b.toml", "c.toml"]
    assert history.recipe_of(run, 4).name == "c.toml"


def test_steps_count_the_ranks_that_read_clips_of_their_own(tmp_path):
    """Ranks that share clips are one; a later start may share them among others."""
    kind, fields = start(None)
    first = [(kind, fields | {"world_size": 8, "sequence_degree": 2}), epoch(0), step(1, 0)]
    kind, fields = start(1)
    again = [(kind, fields | {"world_size": 3}), epoch(1), step(2, 1)]
    (told,) = history.epochs(run_with(tmp_path, *first, *again))
    assert [s.world_size for s in told.steps[0]] == [4, 3]


def test_epochs_of_two_generations_are_two_and_those_given_up_are_none(tmp_path):
    """Data begin again at step 1, are lost before a save, and the run goes on with the former ones."""
    again = [start(1), epoch(1, data_restarts=1), step(2, 0)]
    first = [start(None), epoch(0), step(1, 0)]
    both = history.epochs(run_with(tmp_path, *first, *again))
    assert [(one.data_restarts, one.epoch, len(one.steps[0])) for one in both] == [(0, 0, 1), (1, 0, 1)]
    (told,) = history.epochs(run_with(tmp_path, start(1), epoch(1), step(2, 1)))
    assert (told.data_restarts, rows_by_segment(told)) == (0, {0: [0, 1]})


def test_a_generation_is_finished_once_its_training_came_to_an_end_that_holds(tmp_path):
    def stop(number, reason):
        return "stop", {"step": number, "reason": reason}

    first = [start(None), epoch(0), step(1, 0), stop(1, "finished")]
    again = [start(1), epoch(1, data_restarts=1), step(2, 0), stop(2, "signal")]
    run = run_with(tmp_path, *first, *again)
    assert history.finished_generations(run) == {0}
    run_with(tmp_path, start(2), epoch(2, data_restarts=1), step(3, 1), stop(3, "finished"))
    assert history.finished_generations(run) == {0, 1}
    run_with(tmp_path, start(2), epoch(2, data_restarts=1))
    assert history.finished_generations(run) == {0}


def test_a_start_that_is_killed_while_it_goes_back_leaves_what_it_left(tmp_path):
    """It removes and replaces records of segments without a step before it tells which one it begins."""
    begun = [start(None), epoch(0), step(1, 0), step(2, 1), epoch(2, number=1), epoch(2, number=2)]
    run = run_with(tmp_path, *begun, step(3, 0), start(2))
    records.write(run, a_record((0, 1, 0), plan="another plan"))
    second = history.epochs(run)[1]
    assert (second.epoch, second.plans, second.planned, second.segment) == (1, {0: "another plan"}, None, 0)
    assert [one.epoch for one in history.epochs(run)] == [0, 1]  # the third one's record is gone
    run_with(tmp_path, epoch(2, number=2))
    assert [one.epoch for one in history.epochs(run)] == [0, 1, 2]  # what has begun needs its record


def test_so_does_one_whose_successor_begins_elsewhere(tmp_path):
    begun = [start(None), epoch(0), step(1, 0), step(2, 1), epoch(2, number=1), step(3, 0)]
    run = run_with(tmp_path, *begun, start(2), start(2), epoch(2, number=0, data_restarts=1))
    assert [(one.data_restarts, one.epoch) for one in history.epochs(run)] == [(0, 0), (1, 0)]
    records.write(run, a_record((0, 1, 0), plan="a plan"))  # the killed start did not get as far
    assert [(one.data_restarts, one.epoch) for one in history.epochs(run)] == [(0, 0), (0, 1), (1, 0)]


def a_record(key, plan):
    """A record of a segment that plans no clip."""
    none = np.zeros(0, np.int64)
    columns = {field.name: none for field in dataclasses.fields(Record)}
    texts = ("catalog_digest", "spec_digest", "recipe", "catalog", "catalog_uids")
    about = About(
        **dict(zip(("data_restarts", "epoch", "segment"), key, strict=True)),
        **{"time": 1.7e9, "first_step": 2, "steps": 0, "planned": 0, "plan": plan, "spec": {}},
        **{"exclude_list": None, "costs": None, "catalog_version": 1, **dict.fromkeys(texts, "-")},
        **{"datasets": ["a"], "buckets": [], "entries": []},
    )
    note = pa.array([], pa.string())
    return Record(**{**columns, "about": about, "other_note": note, "labels": ["none"]})


def test_a_folder_without_events_has_no_epoch(tmp_path):
    assert history.epochs(RunFolder(tmp_path)) == []
