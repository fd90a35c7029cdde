"""Second showings fill batches and count apart; steps that the recipe leaves out are passed over by name."""

from __future__ import annotations

import children
import numpy as np
import pytest

from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.training.coverage import clip_history
from reelworks.training.loop.replay import replay_step
from reelworks.training.plan import epoch_stats

ONE_EPOCH = {"max_steps": None, "max_epochs": 1}


def one_epoch(tiny, output="run", **changes):
    train = ONE_EPOCH | changes.pop("train", {})
    recipe = tiny(output, validation={"split": 0.0}, train=train, **changes)
    del recipe["train"]["max_steps"]
    return recipe


def showings(run):
    """(uid, copy, showing) of all that trained, in order."""
    lines = children.debug_lines(run)
    return [(c["uid"], c["copy"], c["repeat_index"]) for line in lines for c in line["trained"]]


def test_repeat_fills_every_batch_and_trains_each_clip_once_more_at_most(tiny, tmp_path):
    recipe = one_epoch(tiny, buckets={"incomplete_batch": "repeat"})
    assert children.train(recipe, debug=True) == [0]
    run = RunFolder(tmp_path / "run")
    shown = showings(run.path)
    first = [key for key in shown if key[2] == 0]
    (account,) = events.read(run.events_file, "epoch_end")
    assert len(set(shown)) == len(shown)
    assert account["planned"] == account["trained"] == len(first) == len({uid for uid, *_ in first})
    assert 0 < account["repeated"] == len(shown) - len(first)
    steps = list(events.read(run.events_file, "step"))
    sizes = {5: 2, 1: 3}
    for step in steps:
        (bucket,) = step["buckets"]
        size = sizes[int(bucket.rpartition("×")[2])]
        assert step["clips"] + step["repeated"] == size
        assert (step["micro_batches"], step["batch_sizes"]) == (1, [size])
    (epoch,) = clip_history.cover(run).epochs
    assert epoch.adds_up
    assert f"{account['repeated']} shown again to fill batches" in children.output(recipe)
    number = next(s["step"] for s in steps if s["repeated"])
    clips = [c for micro_batch in replay_step(run, number).summary().micro_batches for c in micro_batch.clips]
    again = [c for c in clips if c.repeat_index]
    assert again
    twins = [c for c in replay_all(run, steps) if (c.uid, c.repeat_index) == (again[0].uid, 0)]
    assert twins[0].timestep != again[0].timestep  # each showing meets draws of its own
    measured = epoch_stats.measure_costs(run)
    assert all(time.milliseconds(1) > 0 for time in measured.values())


def replay_all(run, steps):
    told = [replay_step(run, step["step"]).summary() for step in steps]
    return [c for one in told for micro_batch in one.micro_batches for c in micro_batch.clips]


@pytest.mark.slow
def test_steps_that_the_recipe_leaves_out_train_nothing_and_are_accounted_for(tiny, tmp_path):
    calm, skipping = one_epoch(tiny, "calm"), one_epoch(tiny, "skipping", train={"skip_steps": [[2, 3]]})
    for recipe in (calm, skipping):
        assert children.train(recipe, debug=True) == [0]
    steps = {line["step"]: line for line in children.debug_lines(tmp_path / "calm")}
    others = {line["step"]: line for line in children.debug_lines(tmp_path / "skipping")}
    assert {step for step, line in others.items() if line["trained"]} == set(steps) - {2, 3}
    assert all(others[step]["trained"] == steps[step]["trained"] for step in set(steps) - {2, 3})
    run = RunFolder(tmp_path / "skipping")
    (account,) = events.read(run.events_file, "epoch_end")
    left_out = sum(len(steps[step]["trained"]) for step in (2, 3))
    assert account["skipped"] == left_out
    assert account["planned"] == account["trained"] + left_out
    (epoch,) = clip_history.cover(run).epochs
    assert epoch.adds_up
    assert epoch.counts["skipped"] == left_out
    assert children.output(skipping).count("skipped: named by train.skip_steps") == 1
    assert "steps 2 to 3 are skipped" in children.output(skipping)


@pytest.mark.slow
def test_a_bad_stretch_is_left_out_by_going_back_before_it(tiny, tmp_path):
    """The way out of a run that broke: resume from before, with the steps named."""
    assert children.train(tiny(train={"max_steps": 4}), debug=True) == [0]
    again = tiny(train={"max_steps": 6, "skip_steps": [[3, 4]]})
    assert children.train(again, debug=True, resume="2") == [0]
    steps = [(e["step"], e["clips"]) for e in events.timeline(RunFolder(tmp_path / "run").events_file, "step")]
    assert [step for step, _ in steps] == [1, 2, 3, 4, 5, 6]
    assert [clips == 0 for _, clips in steps] == [False, False, True, True, False, False]
    assert np.isfinite([e["loss"] for e in events.read(RunFolder(tmp_path / "run").events_file, "validation")]).all()
