"""Networks that take a pass for each clip train on several ranks, of which some have more clips than others."""

from __future__ import annotations

from pathlib import Path

import children
import pytest
from test_not_finite import BARE, plant

from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.training.loop import replay

TRAIN = {"max_steps": 5, "micro_batches_per_step": 2, "same_bucket_run": 1}


def told(run: Path, kind: str, field: str) -> list[float]:
    return [event[field] for event in events.timeline(RunFolder(run).events_file, kind)]


@pytest.mark.slow  # six processes that import diffusers
@pytest.mark.parametrize("name", ["minimax-h3-tiny", "qwen-image-2.1-tiny"])
def test_ranks_with_fewer_clips_compute_copies_that_do_not_count(tiny, tmp_path, name):
    """Two ranks, with micro-batches of three clips and of one, train as one process does."""
    buckets = [
        {"resolution": "32px", "num_frames": 1, "batch_size": 3, "keep_prob": 0.5},
        {"resolution": "16px", "num_frames": 1, "batch_size": 1},
    ]
    changes = {"bucket": buckets, "train": TRAIN, "validation": {"every_steps": 4}}
    for run, world in (("one", 1), ("two", 2)):
        recipe = tiny(run, **changes) | {"model": {"name": name}}
        assert children.train(recipe, world=world) == [0] * world, children.output(recipe)
    one, two = tmp_path / "one", tmp_path / "two"
    for kind, field in (("step", "loss"), ("step", "grad_norm"), ("validation", "loss")):
        assert told(two, kind, field) == pytest.approx(told(one, kind, field), rel=5e-4), field
    assert told(two, "step", "clips") == told(one, "step", "clips")
    sizes = [[len(work.uids) for work in replay.replay_step(RunFolder(two), step).columns] for step in range(1, 6)]
    assert any(len(set(each)) > 1 for each in sizes), "no step has ranks with different numbers of clips"


@pytest.mark.slow  # two processes that import diffusers
@pytest.mark.parametrize(
    ("name", "weight"), [("minimax-h3-tiny", "norm_out.linear.weight"), ("qwen-image-2.1-tiny", "proj_out.weight")]
)
def test_a_weight_of_one_rank_is_found_whatever_the_numbers_of_clips(tiny, tmp_path, name, weight):
    """All ranks repeat as many passes to find a NaN as the step had; none waits for a pass that others leave out."""
    buckets = [{"resolution": size, "num_frames": 1, "batch_size": n} for size, n in (("32px", 3), ("16px", 1))]
    buckets[0]["keep_prob"] = 0.5
    train = TRAIN | {"max_steps": 9, "max_non_finite": 4}
    recipe = tiny("run", bucket=buckets, train=train, **BARE, parallel={"strategy": "fsdp"}) | {"model": {"name": name}}
    assert children.on_ranks(plant, recipe, "weight", weight, world=2) == [2, 2]
    run = RunFolder(tmp_path / "run")
    assert told(tmp_path / "run", "non_finite", "step") == [4, 5, 6, 7]
    assert set(told(tmp_path / "run", "non_finite", "module")) == {weight}
    sizes = [[len(work.uids) for work in replay.replay_step(run, step).columns] for step in range(4, 8)]
    assert any(len(set(each)) > 1 for each in sizes), "no step has ranks with different numbers of clips"
