"""Numbers that are not finite end a run by its policy, and never become a checkpoint."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import children
import pytest

from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder

# Little to audit, nothing to validate.
BARE = {"buckets": {"aspect_ratios": ["1:1"]}, "validation": {"split": 0.0}}


def plant(recipe: dict, what: str, name: str = "final_layer.linear.weight") -> None:
    """A NaN comes into a weight of the last rank, or into its average, in step 3."""
    from reelworks.data.distributed.mesh import local
    from reelworks.training.step.state import TrainState

    update = TrainState.update_ema

    def and_plant(self: TrainState, step: int, decay: float) -> None:
        update(self, step, decay)
        if step == 2 and int(os.environ.get("RANK", "0")) == int(os.environ.get("WORLD_SIZE", "1")) - 1:
            tensors = self.ema if what == "average" else dict(self.module.named_parameters())
            local(tensors[name].detach()).view(-1)[0] = float("nan")

    TrainState.update_ema = and_plant
    children.train_and_exit(recipe)


@pytest.mark.parametrize(("policy", "last"), [pytest.param("skip", 6, marks=pytest.mark.slow), ("stop", 4)])
def test_a_weight_that_is_not_finite_ends_the_run_and_is_never_saved(tiny, tmp_path, policy, last):
    """The run tells weight and clips at each step, and leaves the checkpoint from before."""
    train = {"max_steps": 9, "non_finite": policy, "max_non_finite": 3}
    recipe = tiny(train=train, **BARE)
    assert children.in_child(plant, recipe, "weight") == 2
    run = RunFolder(tmp_path / "run")
    told = list(events.read(run.events_file, "non_finite"))
    assert [e["step"] for e in told] == list(range(4, last + 1))
    assert {(e["what"], e["module"]) for e in told} == {("weight", "final_layer.linear.weight")}
    assert all(Path(clip["path"]).exists() for e in told for clip in e["clips"])
    assert all(e["clips"] for e in told)
    assert CheckpointFolder(run.checkpoints_folder).steps() == [2]
    printed = children.output(recipe)
    assert "first in the weight of final_layer.linear.weight; the loss of " in printed
    assert ("3 consecutive steps, the last being 6," if policy == "skip" else "step 4 had") in printed


@pytest.mark.slow(reason="two ranks; one process finds the same weight above")
def test_a_weight_of_one_rank_stops_all_in_the_same_step(tiny, tmp_path):
    """A NaN in the last rank's part of the weights: every rank leaves the step out, and none hangs or saves."""
    train = {"max_steps": 9, "max_non_finite": 2}
    recipe = tiny(train=train, **BARE, parallel={"strategy": "fsdp"})
    assert children.on_ranks(plant, recipe, "weight", world=2) == [2, 2]
    run = RunFolder(tmp_path / "run")
    told = list(events.read(run.events_file, "non_finite"))
    assert [e["step"] for e in told] == [4, 5]
    assert {(e["what"], e["module"]) for e in told} == {("weight", "final_layer.linear.weight")}
    assert CheckpointFolder(run.checkpoints_folder).steps() == [2]


def lose_every_other(recipe: dict) -> None:
    """Every second step has a loss that is not finite."""
    from reelworks.training.step.train_step import TrainStep

    take = TrainStep.run

    def and_lose(self: TrainStep, *args: Any, **kwargs: Any) -> Any:
        result = take(self, *args, **kwargs)
        return replace(result, finite=False, applied=False, loss=math.nan) if kwargs["step"] % 2 else result

    TrainStep.run = and_lose
    children.train_and_exit(recipe)


def test_only_consecutive_steps_that_are_not_finite_end_a_run(tiny, tmp_path):
    recipe = tiny(train={"max_steps": 6, "max_non_finite": 2}, **BARE)
    assert children.in_child(lose_every_other, recipe) == 0, children.output(recipe)
    told = events.timeline(RunFolder(tmp_path / "run").events_file, "step")
    assert [event["applied"] for event in told] == [True, False] * 3


def test_an_average_that_is_not_finite_is_never_saved(tiny, tmp_path):
    """Training goes on, since its weights are sound, and says at each save why there is none."""
    recipe = tiny(train={"max_steps": 5}, **BARE)
    assert children.in_child(plant, recipe, "average") == 2
    run = RunFolder(tmp_path / "run")
    assert CheckpointFolder(run.checkpoints_folder).steps() == [2]
    unsaved = list(events.read(run.events_file, "unsaved"))
    assert [event["step"] for event in unsaved] == [4, 5]
    assert all("the average of final_layer.linear.weight" in event["reason"] for event in unsaved)
    assert "no checkpoint was saved: the average of final_layer.linear.weight" in children.output(recipe)
