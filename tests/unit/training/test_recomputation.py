"""What backward passes compute again is chosen by bucket: the least that fits, and never a number of the training."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import prepare_files
import pytest
import tiny_recipe
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refused import refused

from reelworks.data.buckets.entry import Recomputation, recomputed_share
from reelworks.data.buckets.table import BucketTable
from reelworks.data.run.events import EventLog
from reelworks.data.run.folder import RunFolder
from reelworks.data.schedule import cost
from reelworks.models import recompute, registry
from reelworks.training.assembly import build
from reelworks.training.memory import dry_run, estimate, memory, meter, recomputation
from reelworks.training.memory.measurements import Measurements, bucket_table
from reelworks.training.memory.recomputation import Cards
from reelworks.training.recipe import dataset, recipe_file
from reelworks.training.recipe.recipe import Recipe

ENTRIES = [
    {"resolution": "64px", "num_frames": [1, 5], "batch_size": [4, 2]},
    {"resolution": "128px", "num_frames": 17, "batch_size": 1},
]


def recipe(name: str = "stdit3-tiny", **changes: Any) -> Recipe:
    sizes = {"hidden_size": 32, "depth": 4, "num_heads": 2} if name == "stdit3-tiny" else {}
    values = tiny_recipe.least(
        bucket=ENTRIES,
        buckets={"aspect_ratios": ["1:1", "16:9"]},
        model={"name": name, "gradient_checkpointing": "auto", **sizes},
    )
    return recipe_file.parse(values | changes)


def published(**changes: Any) -> Recipe:
    """A LoRA on a network whose sizes are published, so that nothing is measured."""
    values = {
        "bucket": [{"resolution": "480p", "num_frames": [1, 81]}],
        "model": {"name": "wan-2.1-1.3b", "weights": "w", "gradient_checkpointing": "auto"},
        "autoencoder": {"name": "wan-2.1", "weights": "w"},
        "text_encoder": {"name": "wan", "weights": "w"},
        "encode": {"store": True},
        "lora": {},
    }
    return recipe(**values | changes)


@pytest.fixture(scope="module")
def measured() -> Measurements:
    """Networks and passes, each measured once."""
    return Measurements()


def needs(made: Recipe, table: BucketTable, measured: Measurements, way: Recomputation) -> list[int]:
    """Memory of each entry's largest bucket."""
    fixed = memory.without_activations(made, measured.sizes(made))
    return [recomputation._need(made, bucket, way, fixed, measured) for bucket in memory.largest_of_entries(table)]


@pytest.mark.parametrize(
    ("share", "blocks"),
    [(0.25, "1000100010"), (0.5, "1010101010"), (0.75, "1110111011"), (True, "1" * 10), ("selective", "0" * 10)],
)
def test_a_share_of_the_blocks_keeps_inputs_alone(share: Recomputation, blocks: str) -> None:
    counted = recompute._Blocks(share)
    assert "".join(str(int(counted.next() is True)) for _ in blocks) == blocks


def test_blocks_of_buckets_without_recomputation_are_called_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(recompute, "checkpoint", lambda block, *args, **how: calls.append(how) or block(*args))
    x = torch.ones(1, requires_grad=True)
    for way, expected in ((False, 0), ("selective", 1), (True, 1)):
        calls.clear()
        with recompute.by(way):
            assert recompute.run_block(torch.square, "auto", x) == 1
        assert len(calls) == expected
        assert ["context_fn" in how for how in calls] == [way == "selective"] * expected
    calls.clear()
    recompute.run_block(torch.square, "auto", x)  # a pass of no bucket takes the least memory
    with torch.no_grad():
        recompute.run_block(torch.square, "auto", x)
    assert len(calls) == 1


@pytest.mark.parametrize("model", ["flux-tiny", pytest.param("stdit3-tiny", marks=pytest.mark.slow)])
@settings(max_examples=30)
@given(at=st.floats(-0.2, 1.2), compiles=st.booleans())
@pytest.mark.slow
def test_what_is_chosen_fits_and_is_the_least_that_does(
    measured: Measurements, model: str, at: float, compiles: bool
) -> None:
    """For memory from too little for anything to more than enough for all."""
    entries = (
        {}
        if model != "flux-tiny"
        else {"bucket": [{"resolution": ["64px", "128px"][i], "num_frames": 1} for i in (0, 1)]}
    )
    made = recipe(model, train={"max_steps": 1, "compile": compiles}, **entries)
    table = bucket_table(made)
    by_way = {way: needs(made, table, measured, way) for way in recomputation.LADDER}
    least, most = min(by_way[True]), max(by_way[False])
    limit = round(least + at * (most - least))
    found = recomputation.least(made, table, Cards(limit, measured=measured))
    assert list(found) == [str(table.entries[bucket.entry]) for bucket in memory.largest_of_entries(table)]
    for place, way in enumerate(found.values()):
        rungs = [by_way[each][place] for each in recomputation.LADDER]
        at_rung = recomputation.LADDER.index(way)
        most = max(limit, rungs[-1])
        assert rungs[at_rung] <= most
        assert all(need > most for need in rungs[:at_rung])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wan-tiny", "stdit3-tiny"])
def test_shares_take_no_more_than_is_told(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A pass in which single blocks keep their inputs, run with all its blocks; memory falls from step to step."""
    sizes = {"num_layers": 10} if name == "wan-tiny" else {"depth": 5}
    preset = registry.PRESETS[name]
    monkeypatch.setitem(registry.PRESETS, name, replace(preset, config=preset.config.model_copy(update=sizes)))
    made = recipe(name, model={"name": name, "gradient_checkpointing": "auto"})
    bucket = memory.largest_of_entries(bucket_table(made))[-1]
    network, inputs = (
        estimate.network(made),
        dry_run.blank(build.lazy_encoder(made, torch.device("meta")), bucket, 1, torch.device("meta")),
    )
    bucket, told = replace(bucket, batch_size=1), []
    for way in recomputation.LADDER:
        with recompute.by(way):
            real = meter.measure(network, inputs)
        said = estimate.one_pass(made, network, replace(bucket, recomputation=way))
        assert real.peak_bytes <= 1.02 * said.peak_bytes, way
        assert said.peak_bytes <= 1.15 * real.peak_bytes, way
        told.append(said.peak_bytes)
    assert told == sorted(told, reverse=True)
    assert told[-1] < 0.6 * told[0]


def test_entries_that_the_recipe_names_keep_theirs_and_others_are_chosen() -> None:
    made = published(buckets={"aspect_ratios": ["1:1"], "gradient_checkpointing": {"480p ×1": 0.5}})
    roomy = recomputation.settled(made, bucket_table(made), Cards(10**15)).buckets.gradient_checkpointing
    tight = recomputation.settled(made, bucket_table(made), Cards(1)).buckets.gradient_checkpointing
    assert roomy == {"480p ×81": False, "480p ×1": 0.5}
    assert tight == {"480p ×81": True, "480p ×1": 0.5}
    assert list(roomy) == ["480p ×81", "480p ×1"]
    unknown = recomputation.settled(made, bucket_table(made), Cards(None)).buckets.gradient_checkpointing
    on_a_cpu = recomputation.settled(made, bucket_table(made), Cards(math.inf)).buckets.gradient_checkpointing
    assert (unknown, on_a_cpu) == ({"480p ×1": 0.5}, roomy)
    settled = recomputation.settled(made, bucket_table(made), Cards(1))
    assert recomputation.settled(settled, bucket_table(settled), Cards(10**15)) == settled
    assert recipe_file.parse(settled.model_dump(exclude_unset=True)) == settled
    assert recomputation.settled(recipe(**FIXED), bucket_table(made), Cards(1)) == recipe(**FIXED)


STAGES = [
    {"name": "pictures", "steps": 3, "bucket": [{"resolution": "480p", "num_frames": 1}]},
    {"name": "clips", "steps": 3},
]


@pytest.mark.parametrize("stages", [[], STAGES])
def test_a_run_keeps_what_it_chose_until_its_memory_is_another(tmp_path: Path, stages: list[dict[str, Any]]) -> None:
    """Also on other GPUs, and in each of its stages; `train.memory_gb` says what the run may take: by that it is chosen again."""

    def limited(gb: float) -> Recipe:
        return published(output=str(tmp_path), train={"max_steps": 6, "memory_gb": gb}, stage=stages)

    def chosen(gb: float, device_bytes: float) -> list[dict[str, Recomputation]]:
        each = recipe_file.each_stage(limited(gb))
        settled = [recomputation.settled(one, bucket_table(one), Cards(device_bytes)) for one in each]
        return [one.buckets.gradient_checkpointing for one in settled]

    run = RunFolder(tmp_path)
    run.create()
    for one in recipe_file.each_stage(whole := limited(200)):  # as each of them starts
        begun = recipe_file.dump(recomputation.settled(one, bucket_table(one), Cards(200e9)))
        name = run.keep_recipe(begun, recipe_file.dump(whole) if stages else None)
        EventLog(run.events_file).write("start", recipe=name)
    roomy = [{"480p ×1": False}] * len(stages[1:]) + [{"480p ×81": False, "480p ×1": False}]
    assert chosen(200, 200e9) == chosen(200, 14e9) == roomy
    assert chosen(14, 14e9)[-1]["480p ×81"] is True


FIXED: dict[str, Any] = {"model": {"name": "stdit3-tiny", "gradient_checkpointing": True}}


def test_what_cannot_be_is_refused() -> None:
    made = recipe(buckets={"gradient_checkpointing": {"64px ×9": True}})
    with refused("entry-not-there", field="buckets.gradient_checkpointing", says="64px ×9"):
        recomputation.settled(made, bucket_table(made), Cards(None))
    with refused("recomputation-not-by-entry", field="buckets.gradient_checkpointing"):
        recipe(buckets={"gradient_checkpointing": {"64px ×5": True}}, **FIXED)
    for wrong in (0.0, 1.5, "all", None):
        with pytest.raises(Exception, match="gradient_checkpointing"):
            recipe(buckets={"gradient_checkpointing": {"64px ×5": wrong}})


def test_costs_follow_and_nothing_else_of_a_plan() -> None:
    """A third of a step is its forward pass, of which a share is computed again."""
    made = recipe()
    plain = dataset.bucket_table(made)[1]
    some = dataset.bucket_table(recomputation.with_recomputation(made, {"64px ×5": True, "128px ×17": "selective"}))[1]
    names = [bucket.name for bucket in plain.buckets]
    costs = [
        dict(zip(names, cost.costs_us(names, table.tokens(), made.cost, {}, table.recomputed_shares())[0], strict=True))
        for table in (plain, some)
    ]
    ratios = {
        name: costs[1][name] / costs[0][name] / (costs[1]["64px 1:1 ×1"] / costs[0]["64px 1:1 ×1"]) for name in names
    }
    for name, ratio in ratios.items():
        entry = f"{name.split()[0]} {name.split()[2]}"
        wanted = {"64px ×5": 4 / 3, "128px ×17": 1 + recomputed_share("selective") / 3}.get(entry, 1)
        assert ratio == pytest.approx(wanted, rel=0.02)
    assert cost.costs_us(names, plain.tokens(), made.cost, {}) == cost.costs_us(
        names, plain.tokens(), made.cost, {}, plain.recomputed_shares()
    )


def test_a_gpu_with_less_memory_recomputes_more_and_one_with_more_keeps_what_was_planned() -> None:
    made = published()

    class Data:
        recipe = recomputation.settled(made, bucket_table(made), Cards(10**15))
        table = bucket_table(recipe)
        rows = range(1000)

    assert set(recomputation.raised(Data, Cards(None))) == set(recomputation.raised(Data, Cards(10**15))) == {False}
    less = recomputation.raised(Data, Cards(1))
    assert set(less) == {True}
    first, second = recomputation.lines_of_start(Data, less)
    assert first == "recomputed in backward passes: all but the inputs of blocks (480p ×81, 480p ×1)"
    assert second.startswith("more than was planned of 480p ×81, 480p ×1")
    Data.recipe = recomputation.settled(made, bucket_table(made), Cards(1))
    Data.table = bucket_table(Data.recipe)
    assert recomputation.raised(Data, Cards(10**15)) == less
    assert recomputation.raised(type("Fixed", (), {"recipe": recipe(**FIXED), "table": Data.table}), Cards(1)) == ()


def test_what_is_recomputed_is_of_micro_batches_that_the_clips_can_fill(tmp_path: Path) -> None:
    for i in range(3):
        prepare_files.picture(tmp_path / "data" / f"{i}.png", grey=i)
    bucket = [{"resolution": "48px", "num_frames": 1, "batch_size": 65_536}]
    made = published(bucket=bucket, dataset=[{"path": str(tmp_path / "data")}], output=str(tmp_path / "run"))
    data = recomputation.settle(prepare_files.opened(made), Cards(24 * 10**9))
    assert data.recipe.buckets.gradient_checkpointing == {"48px ×1": False}
    assert set(recomputation.raised(data, Cards(24 * 10**9))) == {False}


def test_published_networks_need_no_torch_to_choose() -> None:
    """Of a LoRA: more memory recomputes less, and pictures nothing at all."""
    made = published()
    found = [recomputation.least(made, bucket_table(made), Cards(round(gb * 1e9))) for gb in (14, 24, 48, 200)]
    ranks = [[recomputation._rank(way) for way in each.values()] for each in found]
    assert ranks == sorted(ranks, reverse=True)
    assert found[0] == {"480p ×1": False, "480p ×81": True}
    assert found[-1] == {"480p ×1": False, "480p ×81": False}


@pytest.mark.slow
def test_ranks_that_share_the_weights_recompute_less(measured: Measurements) -> None:
    """All weights are trained: eight ranks hold an eighth each, and whole blocks only while they are in use."""
    made = recipe()
    table, sizes = bucket_table(made), measured.sizes(made)
    whole, shared = (memory.without_activations(made, sizes, shards) for shards in (1, 8))
    told = [recomputation.estimate(made, table, Cards(10**12, ranks, ranks, measured)) for ranks in (1, 8)]
    assert told[0].memory.total - told[1].memory.total == whole.total - shared.total
    assert shared.total == whole.total - 7 * whole.trained // 8 * 5 + sizes.in_use_bytes  # with optimizer and average
    largest = memory.largest_of_entries(table)[-1]
    limit = recomputation._need(made, largest, "selective", shared, measured)
    alone, together = (recomputation.least(made, table, Cards(limit, ranks, ranks, measured)) for ranks in (1, 8))
    ranks = [[recomputation._rank(way) for way in each.values()] for each in (together, alone)]
    assert all(less <= more for less, more in zip(*ranks, strict=True))
    assert ranks[0] != ranks[1]


def test_a_base_of_few_bits_lies_whole_on_each_rank() -> None:
    for base, divided in (("bfloat16", True), ("int8", False)):
        made = published(lora={"base": base})
        sizes = Measurements().sizes(made)
        whole = memory.without_activations(made, sizes)
        shared = memory.without_activations(made, sizes, 4)
        assert shared.base == (whole.base // 4 + sizes.in_use_bytes if divided else whole.base)
        assert shared.optimizer == whole.optimizer // 4
