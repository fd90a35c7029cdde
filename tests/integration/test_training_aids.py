"""Early stopping, spikes and traces in whole trainings."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import children
import pytest

from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.training.coverage import clip_history
from reelworks.training.coverage.coverage import State


def steps_of(run: RunFolder) -> list[dict[str, Any]]:
    return events.timeline(run.events_file, "step")


IMPATIENT = {"every_steps": 1, "patience": 2, "min_delta": 100.0, "max_clips": 1}


@pytest.mark.slow
def test_training_ends_when_the_validation_loss_does_not_fall_and_stays_ended(tiny: Any, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    recipe = tiny(validation=IMPATIENT, checkpoints={"every_steps": 50})
    assert children.train(recipe) == [0], children.output(recipe)
    assert "has not fallen below" in children.output(recipe)
    (stopped,) = events.read(run.events_file, "early_stop")
    assert (stopped["step"], stopped["best_step"], stopped["patience"]) == (2, 0, 2)
    assert CheckpointFolder(run.checkpoints_folder).steps() == [2]

    assert children.train(recipe) == [0], children.output(recipe)
    assert "nothing left to train at step 2: the validation loss" in children.output(recipe)
    assert len(steps_of(run)) == 2


@pytest.mark.slow
def test_more_patience_trains_on_and_steps_can_be_traced(tiny: Any, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    recipe = tiny(validation=IMPATIENT, checkpoints={"every_steps": 50})
    assert children.train(recipe, profile="1:2") == [0], children.output(recipe)
    (trace,) = run.profiles_folder.glob("*.json.gz")
    names = {event.get("name", "") for event in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]}
    assert {"aten::addmm", "aten::mm"} & names, sorted(names)[:20]

    assert "traced nothing" not in children.output(recipe)

    recipe["validation"]["patience"] = 3
    assert children.train(recipe, profile="1:2") == [0], children.output(recipe)
    assert "--profile 1:2 has traced nothing" in children.output(recipe)
    assert [event["step"] for event in steps_of(run)] == [1, 2, 3]
    assert CheckpointFolder(run.checkpoints_folder).steps()[-1] == 3
    assert not any(epoch.problems or epoch.lost for epoch in clip_history.cover(run).epochs)


@pytest.mark.slow
def test_spikes_that_are_skipped_are_the_same_after_a_resume(tiny: Any, tmp_path: Path) -> None:
    """With a threshold of almost 0 about every second step is a spike; the records count their clips as skipped."""
    settings: dict[str, Any] = {"learning_rate": 1e-3, "threads": 1, "spikes": "skip", "spike_threshold": 0.001}
    quiet = {"every_steps": 50, "split": 0.0}

    def recipe_of(name: str, steps: int) -> dict[str, Any]:
        train = settings | {"max_steps": steps}
        one_bucket = {"bucket": [{"resolution": "32px", "num_frames": 1, "batch_size": 2}]}
        shapes = {"upscale": True, "max_crop": 0.7, "aspect_ratios": ["1:1"]}
        return tiny(
            output=name, train=train, validation=quiet, checkpoints={"every_steps": 50}, buckets=shapes, **one_bucket
        )

    for name, ends in (("whole", [40]), ("parts", [33, 40])):
        for end in ends:
            recipe = recipe_of(name, end)
            assert children.train(recipe) == [0], children.output(recipe)
    whole, parts = (RunFolder(tmp_path / name) for name in ("whole", "parts"))
    keys = ("loss", "grad_norm", "applied")
    found = [[[event[key] for key in keys] for event in steps_of(run)] for run in (whole, parts)]
    assert found[0] == found[1]
    spikes = events.timeline(whole.events_file, "spike")
    skipped = [event["step"] for event in steps_of(whole) if not event["applied"]]
    assert skipped == [event["step"] for event in spikes]
    assert any(step > 33 for step in skipped)
    assert all(event["clips"] and event["value"] > event["limit"] > event["usual"] for event in spikes)
    covered = clip_history.cover(whole).epochs
    assert sum(epoch.number(State.SKIPPED) for epoch in covered) == sum(len(event["clips"]) for event in spikes)


@pytest.mark.slow
def test_a_loss_of_another_size_is_no_spike_after_a_resume(tiny: Any, tmp_path: Path) -> None:
    """A Huber loss is about a tenth of the squared error that training goes on with."""
    shapes = {"upscale": True, "max_crop": 0.7, "aspect_ratios": ["1:1"]}
    recipe = tiny(
        validation={"every_steps": 50, "split": 0.0},
        checkpoints={"every_steps": 50},
        buckets=shapes,
        bucket=[{"resolution": "32px", "num_frames": 1, "batch_size": 2}],
        objective={"loss": "huber", "huber_delta": 0.1},
        train={"learning_rate": 1e-5, "threads": 1, "spikes": "skip", "max_steps": 30},
    )
    assert children.train(recipe) == [0], children.output(recipe)
    recipe["objective"] = {"loss": "mse"}
    recipe["train"]["max_steps"] = 50
    assert children.train(recipe) == [0], children.output(recipe)
    steps = steps_of(RunFolder(tmp_path / "run"))
    assert [event["step"] for event in steps if not event["applied"] and event["step"] > 30] == []
    assert min(event["loss"] for event in steps[30:]) > 3 * max(event["loss"] for event in steps[:30])
