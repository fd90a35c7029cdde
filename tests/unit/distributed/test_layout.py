"""How ranks share a network: what a recipe names is kept or refused, and "auto" goes by what fits."""

from __future__ import annotations

import pytest
import tiny_recipe
from refused import refused

from reelworks.data.distributed import layout
from reelworks.data.distributed.config import ParallelConfig
from reelworks.data.distributed.layout import Layout, Needs
from reelworks.training.recipe import recipe_file

GB = 10**9
SMALL_LORA = Needs(is_lora=True, state_bytes=30 * GB, device_bytes=80 * GB)
LARGE_LORA = Needs(is_lora=True, state_bytes=50 * GB, device_bytes=80 * GB)
FULL = Needs(is_lora=False, state_bytes=280 * GB, device_bytes=80 * GB)


def parallel(**keys: object) -> ParallelConfig:
    return ParallelConfig.model_validate(keys)


@pytest.mark.parametrize(
    ("needs", "ranks", "local", "wanted", "because"),
    [
        (SMALL_LORA, 16, 8, Layout(16, 1), "30 GB"),
        (LARGE_LORA, 8, 8, Layout(1, 8), "base does not fit"),
        (LARGE_LORA, 16, 8, Layout(2, 8), "several nodes"),
        (FULL, 8, 8, Layout(1, 8), "all weights are trained"),
        (FULL, 16, 8, Layout(2, 8), "several nodes of 8 ranks"),
        (FULL, 4, 2, Layout(1, 4), "all weights are trained"),  # a node's two ranks could not hold a copy
        (FULL, 3, 1, Layout(1, 3), "all weights are trained"),
        (FULL, 12, 8, Layout(1, 12), "all weights are trained"),  # nodes of different sizes
    ],
)
def test_auto_goes_by_what_fits(needs: Needs, ranks: int, local: int, wanted: Layout, because: str) -> None:
    chosen, reason = layout.choose(parallel(), ranks, local, needs)
    assert chosen == wanted
    assert because in reason


def test_auto_gives_whole_weights_to_an_optimizer_that_needs_them() -> None:
    needs = Needs(is_lora=False, state_bytes=280 * GB, device_bytes=80 * GB, whole="norms over all weights")
    chosen, reason = layout.choose(parallel(), 8, 8, needs)
    assert (chosen, "norms over all weights" in reason) == (Layout(8, 1), True)


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        ({"strategy": "replicated"}, Layout(6, 1)),
        ({"strategy": "fsdp"}, Layout(1, 6)),
        ({"strategy": "hsdp"}, Layout(2, 3)),
        ({"strategy": "hsdp", "shard_size": 2}, Layout(3, 2)),
    ],
)
def test_a_named_layout_is_kept(keys: dict[str, object], wanted: Layout) -> None:
    chosen, reason = layout.choose(parallel(**keys), 6, 3, LARGE_LORA)
    assert chosen == wanted
    assert chosen.strategy == keys["strategy"]
    assert str(keys["strategy"]) in reason


def test_ranks_that_cannot_be_divided_are_refused() -> None:
    with refused("ranks-not-divisible", "parallel.shard_size", says="6 ranks cannot be divided into groups of 4"):
        layout.fixed(parallel(strategy="hsdp", shard_size=4), 6, 3)
    with refused("ranks-not-divisible", "parallel.shard_size", says="nodes have different numbers of ranks"):
        layout.fixed(parallel(strategy="hsdp"), 6, 4)


def test_a_shard_size_without_use_is_refused() -> None:
    recipe = tiny_recipe.least(
        bucket=[{"resolution": "48px", "num_frames": 1}],
        train={"max_steps": 9},
        parallel={"strategy": "fsdp", "shard_size": 2},
    )
    with refused("shard-size-without-use", "parallel.shard_size"):
        recipe_file.parse(recipe)
