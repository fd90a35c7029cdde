"""One run on 4, 2 and 1 processes: the same clips in each global batch, and the same training."""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import children
import pytest

from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.training.recipe import dataset, recipe_file

TRAIN = {"max_steps": 6, "micro_batches_per_step": 4, "same_bucket_run": 2, "log_block_grad_norms_every": 1}


def global_batches(run: Path) -> dict[int, list[tuple[int, int]]]:
    """Clips of every step over all ranks, from what each rank logged behind its optimizer step."""
    clips: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for line in children.debug_lines(run):
        clips[line["step"]] += [(clip["uid"], clip["copy"]) for clip in line["trained"]]
    return {step: sorted(found) for step, found in clips.items()}


def told(run: Path, kind: str, field: str) -> list[float]:
    return [event[field] for event in events.timeline(RunFolder(run).events_file, kind)]


def assert_same_training(run: Path, other: Path) -> None:
    """Losses, gradients and averaged weights agree; a norm would show what AdamW's scale hides."""
    for kind, field in (("step", "loss"), ("step", "grad_norm"), ("validation", "loss")):
        assert told(run, kind, field) == pytest.approx(told(other, kind, field), rel=5e-4), field
    assert told(run, "step", "clips") == told(other, "step", "clips")


# Ranks with the steps that they train up to: 4, of which pairs share a copy in shards, then 2 with copies, then 1.
_LONG = [(4, 2, {"strategy": "hsdp", "shard_size": 2}), (2, 4, {"strategy": "replicated"}), (1, 6, {})]
_SHORT = [(2, 3, {"strategy": "fsdp"}), (1, 6, {})]


@pytest.mark.parametrize(
    "route", [pytest.param(_LONG, marks=pytest.mark.slow(reason="nine processes")), _SHORT], ids=["4-2-1", "2-1"]
)
def test_global_batches_do_not_depend_on_the_number_of_processes(tiny, tmp_path, route):
    # Small batches, so that an epoch has many micro-batches and its steps differ from those of the next; few shapes to
    # audit.
    entries = [{"resolution": "32px", "num_frames": [1, 5], "batch_size": [2, 1]}]
    train = partial(tiny, bucket=entries, buckets={"aspect_ratios": ["1:1"]}, validation={"split": 0.0})
    assert children.train(train("one", train=TRAIN), debug=True) == [0]
    for world, steps, parallel in route:
        recipe = train("many", train={**TRAIN, "max_steps": steps}, parallel=parallel)
        assert children.train(recipe, debug=True, world=world) == [0] * world
    one, many = tmp_path / "one", tmp_path / "many"
    assert global_batches(many) == global_batches(one)
    assert sorted(global_batches(one)) == [1, 2, 3, 4, 5, 6]
    assert len(set(map(str, global_batches(one).values()))) == 6, "steps must differ from one another"
    assert told(one, "step", "loss") == pytest.approx(told(many, "step", "loss"), rel=5e-4)
    assert told(one, "step", "grad_norm") == pytest.approx(told(many, "step", "grad_norm"), rel=5e-4)
    by_block = [told(run, "step", "grad_norm_by_block") for run in (one, many)]
    for alone, sharded, whole in zip(*by_block, told(many, "step", "grad_norm"), strict=True):
        assert alone == pytest.approx(sharded, rel=5e-4)
        assert sum(norm**2 for norm in sharded.values()) ** 0.5 == pytest.approx(whole, rel=1e-5)
    assert RunFolder(many).info().ranks == route[0][0]


@pytest.mark.parametrize("strategy", [pytest.param("replicated", marks=pytest.mark.slow), "fsdp"])
@pytest.mark.slow
def test_ranks_without_work_keep_the_others_company(tiny, tmp_path, strategy):
    """Three micro-batches on two ranks: one rank runs a filler, and nothing of it counts."""
    train = {"max_steps": 4, "micro_batches_per_step": 3, "same_bucket_run": 1}
    changes = {"train": train, "parallel": {"strategy": strategy}, "validation": {"every_steps": 2}}
    assert children.train(tiny("one", **changes), debug=True) == [0]
    assert children.train(tiny("two", **changes), debug=True, world=2) == [0] * 2
    assert global_batches(tmp_path / "two") == global_batches(tmp_path / "one")
    assert_same_training(tmp_path / "two", tmp_path / "one")


@pytest.mark.slow
def test_ranks_validate_clips_of_different_buckets_together(tiny, tmp_path):
    """A picture's five timesteps fit into one pass, and those of a video do not; all ranks pass equally often."""
    entries = [{"resolution": "32px", "num_frames": [1, 5], "batch_size": [5, 1]}]
    validation = {"split": 0.5, "timesteps": [100.0, 300.0, 500.0, 700.0, 900.0]}
    made = partial(tiny, bucket=entries, train={"max_steps": 1}, validation=validation)
    assert children.train(made("one")) == [0]
    data = dataset.RecipeData.open(recipe_file.parse(made("one")))
    passes = [1 if data.table.buckets[bucket].batch_size == 5 else 5 for bucket in data.held_out().bucket.tolist()]
    assert sum(passes[::2]) != sum(passes[1::2]), "by their own buckets, both ranks would pass equally often"
    assert children.train(made("two", parallel={"strategy": "fsdp"}), world=2) == [0] * 2
    losses = [told(tmp_path / run, "validation", "loss_by_bucket")[0] for run in ("one", "two")]
    assert losses[0] == pytest.approx(losses[1], rel=5e-4)


@pytest.mark.slow
def test_more_ranks_than_micro_batches_are_refused(tiny):
    bare = partial(tiny, buckets={"aspect_ratios": ["1:1"]}, validation={"split": 0.0})
    assert children.train(bare(train={"max_steps": 1}), debug=True) == [0]
    recipe = bare(train={"max_steps": 2})
    assert 0 not in children.train(recipe, world=2)
    assert "micro_batches_per_step = 1" in children.output(recipe)


@pytest.mark.slow
def test_torchrun_and_our_own_launcher_train(tiny, tmp_path):
    import subprocess
    import sys

    from reelworks.training.recipe import recipe_file

    recipe = tmp_path / "recipe.toml"
    for name, launcher in {
        "torchrun": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "reelworks"],
        "own": ["-m", "reelworks"],
    }.items():
        recipe.write_text(recipe_file.dump(recipe_file.parse(tiny(name, train={"max_steps": 2}))), encoding="utf-8")
        own = ["--nproc-per-node", "2"] if name == "own" else []
        done = subprocess.run(
            [sys.executable, *launcher, "train", str(recipe), *own],
            capture_output=True,
            text=True,
            timeout=300,
            encoding="utf-8",
        )
        assert done.returncode == 0, done.stderr
        start = next(events.read(RunFolder(tmp_path / name).events_file, "start"))
        assert start["world_size"] == 2


@pytest.mark.slow(reason="two processes; what an audit finds has its tests")
@pytest.mark.parametrize("square", [True, False])
def test_ranks_share_the_audit_and_all_tell_what_one_finds(tiny, square):
    """A time that is rounded at clips of one shape alone, whichever rank runs it."""
    recipe = tiny(bucket=[{"resolution": "32px", "num_frames": 1, "batch_size": 1}])
    assert children.on_ranks(_round_times, recipe, square, world=2) == [2, 2]
    assert children.output(recipe).count("an input of role time is rounded to bfloat16 and used") == 2


def _round_times(recipe: dict[str, Any], square: bool) -> None:
    from reelworks.models.diffusers_denoiser import FamilyDenoiser

    predict = FamilyDenoiser.predict

    def and_round(self: FamilyDenoiser, inputs: Any) -> Any:
        height, width = inputs.latent.shape[-2:]
        is_of_shape = (width == height) == square
        return predict(self, replace(inputs, time=inputs.time.bfloat16()) if is_of_shape else inputs)

    FamilyDenoiser.predict = and_round
    # Models of this shape that passed in other tests: a method replaced in its class is no part of what is remembered.
    for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME"):
        os.environ[name] = f"{recipe['output']}-home"
    children.train_and_exit(recipe)
