"""One training on 1 process, 4 with copies, 4 with shards, and 2 × 2: the same losses from the same global batches."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import children
import pytest

from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder

LAYOUTS = {
    "replicated": {"strategy": "replicated"},
    "fsdp": {"strategy": "fsdp"},
    "hsdp": {"strategy": "hsdp", "shard_size": 2},
}


def told(run: Path, kind: str, field: str) -> list[float]:
    return [event[field] for event in events.timeline(RunFolder(run).events_file, kind)]


def assert_same_training(run: Path, other: Path, rel: float) -> None:
    """Losses, norms that clipping used, and the losses of the average, which the checkpoint's weights give."""
    for kind, field in (("step", "loss"), ("step", "grad_norm"), ("validation", "loss")):
        assert told(run, kind, field) == pytest.approx(told(other, kind, field), rel=rel), (kind, field)
        assert told(run, kind, field)


def recipes(tiny, steps):
    train = {
        "max_steps": steps,
        "micro_batches_per_step": 4,
        "same_bucket_run": 2,
        "learning_rate": 1e-4,
        "max_grad_norm": 0.5,
    }
    entries = [{"resolution": "32px", "num_frames": [1, 5], "batch_size": [2, 1]}]
    return partial(tiny, bucket=entries, train=train, validation={"every_steps": steps // 2})


@pytest.mark.slow
def test_twenty_steps_are_equal_in_all_layouts(tiny, tmp_path):
    made = recipes(tiny, 20)
    assert children.train(made("one")) == [0]
    for name, parallel in LAYOUTS.items():
        recipe = made(name, parallel=parallel)
        assert children.train(recipe, world=4) == [0] * 4, children.output(recipe)
        assert f"({name}): parallel.strategy" in children.output(recipe)
        assert_same_training(tmp_path / name, tmp_path / "one", rel=1e-5)


@pytest.mark.slow
def test_a_run_goes_on_from_shards_in_copies_in_any_layout(tiny, tmp_path):
    """Weights, average and optimizer: 2 × 2 ranks, then 4 with shards, then one process."""
    made = recipes(tiny, 6)
    assert children.train(made("one")) == [0]
    for steps, parallel, world in ((2, LAYOUTS["hsdp"], 4), (4, LAYOUTS["fsdp"], 2), (6, {}, 1)):
        recipe = made("wandering", parallel=parallel)
        recipe["train"] = {**recipe["train"], "max_steps": steps}
        assert children.train(recipe, world=world) == [0] * world, children.output(recipe)
    one, wandering = tmp_path / "one", tmp_path / "wandering"
    assert told(wandering, "step", "loss") == pytest.approx(told(one, "step", "loss"), rel=1e-5)
    assert told(wandering, "validation", "loss")[-1] == pytest.approx(told(one, "validation", "loss")[-1], rel=1e-5)
