"""Ranks that share the tokens of clips compute what one rank does: gradients, losses, clips, checkpoints."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import children
import numpy as np
import pytest
import sequence_child
import torch

from reelworks.core import results, toml_none
from reelworks.core.errors import UserError
from reelworks.data.distributed.mesh import World
from reelworks.data.loader import step_source
from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.models import registry
from reelworks.training.plan import plan_forecast
from reelworks.training.recipe import dataset, recipe_file

ALONE = World(0, 1, torch.device("cpu"))
ABLE = [
    name
    for name, preset in registry.PRESETS.items()
    if name.endswith("tiny") and preset.config.network.sequence is not None
]


def assert_equal_gradients(tmp_path, models, variants, degree=2):
    """The loss of each rank is that of one rank, and the gradients of all of them sum to its gradient."""
    recipe = {"output": str(tmp_path / "run"), "models": models, "variants": variants, "degree": degree}
    assert children.on_ranks(sequence_child.gradients, recipe, str(tmp_path), world=degree) == [0] * degree, (
        children.output(recipe)
    )
    for name in models:
        for variant in variants:
            whole = sequence_child.loss_and_gradients(name, ALONE, **variant)
            files = [tmp_path / f"{name}-{'-'.join(variant)}-{degree}-{rank}.pt" for rank in range(degree)]
            parts = [torch.load(file) for file in files]
            loss = whole.pop("loss")
            for part in parts:
                torch.testing.assert_close(part.pop("loss"), loss, rtol=1e-5, atol=1e-6)
                assert part.keys() == whole.keys()
            for key, gradient in whole.items():
                summed = sum(part[key] for part in parts)
                assert torch.allclose(summed, gradient, rtol=1e-4, atol=1e-6), (name, variant, key)
            assert any(gradient.abs().max() > 1e-4 for gradient in whole.values())


@pytest.mark.slow
def test_gradients_sum_to_those_of_one_rank(tmp_path):
    assert_equal_gradients(tmp_path, ["stdit3-tiny", "opensora2-tiny", "wan-tiny"], [{}])


@pytest.mark.slow
def test_gradients_of_every_network_that_can(tmp_path):
    variants = [{}, {"gradient_checkpointing": True}, {"gradient_checkpointing": "selective", "lora": True}]
    assert_equal_gradients(tmp_path, ABLE, variants)


@pytest.mark.slow
def test_a_rank_may_have_nothing_but_padding(tmp_path):
    """Nine tokens of a frame on four ranks: three for each of the first three."""
    assert_equal_gradients(tmp_path, ["stdit2-tiny", "stdit3-tiny"], [{}], degree=4)


TRAIN = {
    "micro_batches_per_step": 4,
    "same_bucket_run": 2,
    "learning_rate": 1e-4,
    "max_grad_norm": 0.5,
    "log_block_grad_norms_every": 1,
}
SAMPLES = {"prompts": ["a clip"], "num_frames": 5, "every_steps": 3, "num_inference_steps": 2}
WAN = {"name": "wan-tiny", "hidden_size": "none", "depth": "none", "num_heads": "none"}


FOUR_HEADS = {"num_heads": 4, "hidden_size": 64}


def told(run, kind, field):
    return [event[field] for event in events.timeline(RunFolder(run).events_file, kind)]


def assert_same_clips(run, other):
    """Each clip is logged as often, by one rank of its group."""
    lines = [
        sorted(
            (line["step"], clip["uid"], clip["copy"]) for line in children.debug_lines(each) for clip in line["trained"]
        )
        for each in (run, other)
    ]
    assert lines[0] == lines[1]
    assert lines[0]


def recipes(tiny, **changes):
    entries = [{"resolution": "32px", "num_frames": [1, 5], "batch_size": [2, 1]}]
    return partial(tiny, bucket=entries, validation={"every_steps": 3}, **changes)


def assert_same_training(run, other, rel=1e-4):
    for kind, field in (("step", "loss"), ("step", "grad_norm"), ("validation", "loss")):
        assert told(run, kind, field) == pytest.approx(told(other, kind, field), rel=rel), (kind, field)
        assert told(run, kind, field)
    for field in ("clips", "tokens", "loss_by_bucket", "loss_by_timestep"):
        for one, two in zip(told(run, "step", field), told(other, "step", field), strict=True):
            assert one == (pytest.approx(two, rel=rel) if isinstance(two, dict) else two), field
    for one, two in zip(
        told(run, "step", "grad_norm_by_block"), told(other, "step", "grad_norm_by_block"), strict=True
    ):
        assert one == pytest.approx(two, rel=rel)
    assert told(run, "epoch_end", "trained") == told(other, "epoch_end", "trained")
    assert told(run, "validation", "clips") == told(other, "validation", "clips")


def test_a_plan_counts_groups_and_names_buckets_that_they_cannot_share(tiny):
    """Four GPUs in groups of two work on as many micro-batches as two GPUs."""

    def forecast(world, degree, **changes):
        recipe = recipe_file.parse(tiny(train={"max_steps": 2}, parallel={"sequence_degree": degree}, **changes))
        return results.as_json(plan_forecast.forecast(recipe, world))

    dataset.scan_recipe(recipe_file.parse(tiny(train={"max_steps": 2})))
    two, groups = forecast(2, 1), forecast(4, 2)
    assert groups["world"] == 4
    for key in ("steps_per_epoch", "micro_batches_per_step", "same_bucket_run", "imbalance", "planned"):
        assert groups[key] == two[key], key
    with pytest.raises(UserError, match="3 ranks cannot be divided into groups of 2"):
        forecast(3, 2)
    with pytest.raises(UserError, match=r"of 1 of 1 buckets equally: 24x40 .* 15 tokens"):
        forecast(
            2, 2, model={**WAN, "name": "ltx-tiny"}, bucket=[{"resolution": "24x40", "num_frames": 1, "batch_size": 1}]
        )


def by_bucket(tiny, batch_sizes, degrees=None, **changes):
    """Pictures, of which groups of few ranks train several side by side, and videos."""
    degree = {} if degrees is None else {"sequence_degree": degrees}
    entries = [{"resolution": "32px", "num_frames": [1, 5], "batch_size": batch_sizes, **degree}]
    return partial(tiny, bucket=entries, validation={"every_steps": 3}, **changes)


def test_a_part_of_a_column_is_as_large_as_the_others(tiny):
    """Parts of four ranks have all clips of the plan's columns, each once, and differ by a clip at most."""
    changes = {"train": {"max_steps": 2}, "parallel": {"sequence_degree": 4}, "model": FOUR_HEADS}
    recipe = recipe_file.parse(by_bucket(tiny, [1, 2], [1, 2], **changes)("parts"))
    dataset.scan_recipe(recipe)
    data = dataset.RecipeData.open(recipe)
    spec = data.plan_spec(2, 1)
    assert set(spec.batch_sizes) == {4}  # videos, two times two; pictures, four times one
    plan = data.plan(spec, 0)
    of_ranks = [step_source.StepSource(data, 0, 1, sequence_rank=rank) for rank in range(4)]
    sizes = set()
    for plan_step in range(plan.num_steps):
        works = [list(source.requests_of_step(plan, 0, plan_step)) for source in of_ranks]
        parts = step_source.parts_of_step(plan, plan_step, data.table)
        counted = []
        for column, micro_batch in zip(zip(*works, strict=True), plan.micro_batches(plan_step).tolist(), strict=True):
            degree = column[0].sequence_degree
            own = [work for work in column[::degree] if not work.is_idle]
            uids = sorted(np.concatenate([work.uids for work in own]).tolist())
            assert uids == sorted(plan.uid[plan.places(micro_batch)].tolist())
            assert all(column[i].uids.tolist() == column[i - i % degree].uids.tolist() for i in range(4))
            counted += [len(work.uids) for work in own]
            sizes |= {(degree, len(work.uids)) for work in own}
            assert max(len(work.uids) for work in own) - min(len(work.uids) for work in own) <= 1
        assert [clips for _, clips in parts] == counted
    assert {degree for degree, _ in sizes} == {1, 2}
    assert len(sizes) > 2  # one column is incomplete


def test_a_degree_must_divide_that_of_the_groups(tiny):
    with pytest.raises(UserError, match=r"groups of 4 ranks .* cannot be divided into groups of 3") as found:
        recipe_file.parse(by_bucket(tiny, [1, 1], [3, 4], parallel={"sequence_degree": 4})("bad"))
    assert found.value.field == "bucket.sequence_degree"
    with pytest.raises(UserError, match="1 value for 2 frame counts"):
        recipe_file.parse(by_bucket(tiny, [1, 1], [4], parallel={"sequence_degree": 4})("bad"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "world", "degree", "degrees", "whole", "steps"),
    [
        ("stdit3-tiny", 4, 4, [1, 4], [4, 1], 20),
        ("wan-tiny", 4, 2, [1, 2], [2, 1], 6),
        ("stdit3-tiny", 4, 4, [2, 4], [2, 1], 6),
        ("ltx-tiny", 2, 2, [1, 2], [2, 1], 6),
    ],
)
def test_degrees_of_buckets_train_as_one_rank(tiny, tmp_path, model, world, degree, degrees, whole, steps):
    """One rank trains the whole columns; 4 ranks train parts of the same, with as many passes on each."""
    sizes = {"model": FOUR_HEADS if model == "stdit3-tiny" else {**WAN, "name": model}}
    if model == "ltx-tiny":
        sizes["buckets"] = {"aspect_ratios": ["1:1"]}
    train = {**TRAIN, "max_steps": steps, "clip_losses": "auto"}
    one = by_bucket(tiny, whole, samples=SAMPLES, train=train, **sizes)("one")
    assert children.train(one, debug=True) == [0], children.output(one)
    made = by_bucket(tiny, [1, 1], degrees, samples=SAMPLES, train=train, parallel={"sequence_degree": degree}, **sizes)
    assert children.train(made("parts"), world=world, debug=True) == [0] * world, children.output(made("parts"))
    assert_same_training(tmp_path / "parts", tmp_path / "one")
    assert_same_clips(tmp_path / "parts", tmp_path / "one")


@pytest.mark.slow
def test_a_run_with_degrees_goes_on_with_other_ranks(tiny, tmp_path):
    """Its columns do not depend on the ranks; latents are stored, and read by each rank for its parts."""
    made = by_bucket(tiny, [1, 1], [1, 2], parallel={"sequence_degree": 2}, encode={"store": True})
    assert children.train(made("straight", train={**TRAIN, "max_steps": 8}), world=2, debug=True) == [0] * 2
    fault = "after the optimizer stepped", 2
    for steps, world, killed in ((3, 2, None), (8, 4, fault), (6, 4, None), (8, 8, None)):
        recipe = made("wandering", train={**TRAIN, "max_steps": steps})
        codes = children.train(recipe, world=world, debug=True, fault=killed)
        assert all(codes) if killed else not any(codes), children.output(recipe)
    straight, wandering = (told(tmp_path / name, "step", "loss") for name in ("straight", "wandering"))
    assert wandering == pytest.approx(straight, rel=1e-4)
    clips = [
        {(line["step"], clip["uid"], clip["copy"]) for line in children.debug_lines(run) for clip in line["trained"]}
        for run in (tmp_path / "wandering", tmp_path / "straight")
    ]
    assert clips[0] == clips[1]  # those of step 4 were logged twice
    assert told(tmp_path / "wandering", "step", "clips") == told(tmp_path / "straight", "step", "clips")


@pytest.mark.slow
def test_chosen_degrees_train_as_given_ones_and_stay(tiny, tmp_path):
    """A run keeps the numbers, and goes on without the file that they came from."""
    file = tmp_path / "recipe.tuned.json"
    trials = [{"bucket": "32px 1:1 ×1", "tokens": 4, "batch_size": 1, "milliseconds": 1.0, "peak_bytes": 4000}]
    model = {"per_batch": 0.0, "per_clip": 0.0, "per_token": 1.0, "per_token_squared": 0.0}
    limits = {"memory_bytes": 10**6, "milliseconds": None, "clips": 8}
    sizes = {"32px ×1": 1, "32px ×5": 0}
    file.write_text(
        json.dumps({"batch_sizes": sizes, "trials": trials, "model_ms": model, "limits": limits}), encoding="utf-8"
    )
    train = {**TRAIN, "max_steps": 4}
    given = by_bucket(tiny, [1, 1], [1, 2], parallel={"sequence_degree": 2}, train=train)("given")
    assert children.train(given, world=4, debug=True) == [0] * 4, children.output(given)
    keys = {"buckets": {"tuned": str(file)}, "parallel": {"sequence_degree": "auto", "max_sequence_degree": 2}}
    recipe = by_bucket(tiny, "auto", train={**train, "max_steps": 2}, **keys)("chosen")
    assert children.train(recipe, world=4, debug=True) == [0] * 4, children.output(recipe)
    file.unlink()
    kept = recipe_file.load(tmp_path / "chosen" / "recipe.toml", ["train.max_steps=4"])
    assert kept.bucket[0].sequence_degree == [1, 2]
    assert kept.parallel.sequence_degree == 2
    assert children.train(toml_none.to_toml(kept), world=2, debug=True) == [0] * 2
    assert told(tmp_path / "chosen", "step", "clips") == told(tmp_path / "given", "step", "clips")
    assert told(tmp_path / "chosen", "step", "loss") == pytest.approx(
        told(tmp_path / "given", "step", "loss"), rel=1e-4
    )


@pytest.mark.slow
@pytest.mark.parametrize("model", ["stdit3-tiny", "wan-tiny", "ltx-tiny"])
def test_two_ranks_train_as_one(tiny, tmp_path, model):
    """They share tokens in three ways; in previews, which come between steps, they share none."""
    sizes = {} if model == "stdit3-tiny" else {"model": {**WAN, "name": model}}
    if model == "ltx-tiny":
        sizes["buckets"] = {"aspect_ratios": ["1:1"]}  # 3:2 has 15 tokens a frame
    made = recipes(tiny, train={**TRAIN, "max_steps": 6}, samples=SAMPLES, **sizes)
    assert children.train(made("one"), debug=True) == [0], children.output(made("one"))
    for name, strategy in (("copies", "replicated"), ("shards", "fsdp")):
        recipe = made(name, parallel={"strategy": strategy, "sequence_degree": 2})
        assert children.train(recipe, world=2, debug=True) == [0] * 2, children.output(recipe)
        assert_same_training(tmp_path / name, tmp_path / "one")
        assert_same_clips(tmp_path / name, tmp_path / "one")
        assert len(list(RunFolder(tmp_path / name).samples_folder.rglob("*.mp4"))) == 2


@pytest.mark.slow
def test_two_groups_train_as_two_ranks_and_a_run_wanders_between_them(tiny, tmp_path):
    """4 ranks in 2 groups, 2 ranks in 1 group, 2 ranks without, 1 rank: the same global batches, checkpoints of all."""
    made = recipes(tiny, samples=SAMPLES)
    train = {**TRAIN, "max_steps": 8}
    assert children.train(made("two", train=train), world=2, debug=True) == [0] * 2
    for name, strategy in (("groups", {"strategy": "hsdp", "shard_size": 2}), ("shards", {"strategy": "fsdp"})):
        recipe = made(name, train=train, parallel={**strategy, "sequence_degree": 2})
        assert children.train(recipe, world=4, debug=True) == [0] * 4, children.output(recipe)
        assert_same_training(tmp_path / name, tmp_path / "two")
        assert_same_clips(tmp_path / name, tmp_path / "two")
        assert len(list(RunFolder(tmp_path / name).samples_folder.rglob("*.mp4"))) == 3
    for steps, degree, world in ((2, 1, 1), (4, 2, 2), (6, 2, 4), (7, 1, 2), (8, 2, 2)):
        recipe = made("wandering", train={**TRAIN, "max_steps": steps}, parallel={"sequence_degree": degree})
        assert children.train(recipe, world=world, debug=True) == [0] * world, children.output(recipe)
    assert told(tmp_path / "wandering", "step", "loss") == pytest.approx(
        told(tmp_path / "two", "step", "loss"), rel=1e-4
    )
    assert_same_clips(tmp_path / "wandering", tmp_path / "two")


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"encode": {"store": True}, "model": {"gradient_checkpointing": "selective"}},
        {"lora": {"rank": 2}, "model": {"gradient_checkpointing": True}},
        {"data": {"num_workers": 1}, "precision": {"compute": "bfloat16"}},
    ],
    ids=["stored", "lora", "bfloat16"],
)
def test_groups_train_as_one_rank_with(tiny, tmp_path, changes):
    made = recipes(tiny, train={**TRAIN, "max_steps": 4}, **changes)
    assert children.train(made("one"), debug=True) == [0], children.output(made("one"))
    recipe = made("two", parallel={"sequence_degree": 2})
    assert children.train(recipe, world=2, debug=True) == [0] * 2, children.output(recipe)
    assert_same_training(tmp_path / "two", tmp_path / "one", rel=0.02 if "precision" in changes else 1e-4)
    assert_same_clips(tmp_path / "two", tmp_path / "one")


@pytest.mark.slow
def test_a_lost_clip_is_counted_once(tiny, tmp_path, footage):
    victim = str(footage / "clip-3.mp4")
    kept = Path(victim).read_bytes()
    lost = []
    for name, degree in (("one", 1), ("two", 2)):
        recipe = tiny(
            name, parallel={"sequence_degree": degree}, train={"max_steps": 12}, data={"max_decode_failures": 0.5}
        )
        assert children.on_ranks(children.lose_a_file, recipe, victim, world=degree) == [0] * degree, children.output(
            recipe
        )
        Path(victim).write_bytes(kept)
        lost.append(
            [(e["step"], e["path"]) for e in events.timeline(RunFolder(tmp_path / name).events_file, "failure")]
        )
    assert lost[0] == lost[1]
    assert lost[0]
    assert told(tmp_path / "two", "epoch_end", "failed") == told(tmp_path / "one", "epoch_end", "failed")
