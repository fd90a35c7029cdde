"""Killed anywhere and resumed, a run ends as if nothing had happened, to the last bit."""

from __future__ import annotations

import random
from pathlib import Path

import children
import faults
import killing
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from reelworks.core import digests
from reelworks.data.checkpoint import load
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.training.assembly import build
from reelworks.training.recipe import recipe_file
from reelworks.training.step.state import TrainState

STEPS = 18


def final_state(run: Path) -> dict[str, str]:
    """Digests of weights, average and optimizer in the newest checkpoint."""
    recipe = recipe_file.load(run / "recipe.toml")
    state = TrainState.start(build.denoiser(recipe, torch.device("cpu")), recipe.train)
    newest = CheckpointFolder(run / "checkpoints").list()[-1]
    assert newest.step == STEPS
    tensors = state.state_dict()
    load.load(newest.path, tensors)
    flat = {
        "model": tensors["model"],
        "ema": tensors["ema"],
        **{f"optimizer of {name}": values for name, values in tensors["optimizer"]["state"].items()},
    }
    return {
        name: digests.digest_arrays(**{key: value.numpy() for key, value in values.items()})
        for name, values in flat.items()
    }


def losses(run: Path) -> dict[int, str]:
    """Loss of every step that holds, as hex."""
    told = events.timeline(RunFolder(run).events_file, "step")
    return {event["step"]: float(event["loss"]).hex() for event in told}


def validations(run: Path) -> dict[int, str]:
    told = events.timeline(RunFolder(run).events_file, "validation")
    return {event["step"]: float(event["loss"]).hex() for event in told}


def curves(run: Path) -> dict[str, list[int]]:
    """Steps of the curves that TensorBoard shows, but for those of means over several steps."""
    read = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    read.Reload()
    return {tag: [point.step for point in read.Scalars(tag)] for tag in read.Tags()["scalars"] if "_by_" not in tag}


# How many points of each class; each costs a start, and one of a class is hit by another draw.
@pytest.mark.parametrize(
    ("seed", "numbers"), [(0, (2, 1, 1)), *(pytest.param(s, (3, 3, 2), marks=pytest.mark.slow) for s in (0, 1))]
)
def test_a_run_killed_at_many_points_equals_the_uninterrupted_one(tiny, tmp_path, seed, numbers):
    changes = {"train": {"max_steps": STEPS}, "objective": {"noise_offset": 0.1, "input_perturbation": 0.1}}
    assert children.train(tiny("calm", **changes)) == [0]
    chance = random.Random(seed)
    classes = (faults.IN_A_STEP, faults.IN_A_SAVE, faults.AROUND_A_COMMIT)
    points = [p for among, n in zip(classes, numbers, strict=True) for p in chance.sample(sorted(among), n)]
    chance.shuffle(points)
    for point in points:
        # Forward passes and events come several to a step; a save and a deletion come every other step.
        call = chance.randint(1, 2) if point in faults.IN_A_STEP else 1
        code = children.train(tiny("killed", **changes), fault=(point, call))
        assert code == [killing.SELF_KILLED], f"{point} was not passed"
    assert children.train(tiny("killed", **changes)) == [0]
    calm, killed = tmp_path / "calm", tmp_path / "killed"
    assert losses(killed) == losses(calm)
    assert sorted(losses(calm)) == list(range(1, STEPS + 1))
    assert validations(killed) == validations(calm)
    assert final_state(killed) == final_state(calm)
    assert curves(killed) == curves(calm)
    assert curves(calm)["train/loss"] == list(range(1, STEPS + 1))


def test_a_run_killed_right_after_its_last_save_has_all_that_follows_a_save(tiny, tmp_path):
    changes = {"train": {"max_steps": 1}, "exports": {"weights": "ema", "every_n_saves": 9}}
    assert children.train(tiny(**changes), fault=("after the commit's rename", 1)) == [killing.SELF_KILLED]
    assert not [*(tmp_path / "run" / "exports").glob("*")]
    assert children.train(tiny(**changes)) == [0]
    told = events.timeline(RunFolder(tmp_path / "run").events_file, "checkpoint", "export", "stop")
    assert [(event["kind"], event["step"]) for event in told] == [("checkpoint", 1), ("export", 1), ("stop", 1)]


def test_the_run_records_its_threads(tiny, tmp_path):
    assert children.train(tiny(train={"max_steps": 1})) == [0]
    start = next(events.read(RunFolder(tmp_path / "run").events_file, "start"))
    assert start["threads"] == 1
