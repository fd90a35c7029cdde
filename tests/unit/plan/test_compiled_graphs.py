"""The plan tells the graphs that training compiles, the buckets that get none, and what token families cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import prepare_files as files
import pytest

from reelworks.data.loader.position import begin_epoch
from reelworks.training.plan import compiled_graphs, plan_forecast
from reelworks.training.plan.compiled_graphs import PlannedGraphs
from reelworks.training.recipe import dataset
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.recipe.recipe import Recipe

SIZES = [(96, 96), (128, 72), (72, 128), (96, 128), (128, 96)]
# Multiples of 4, so that 80px has a grid of 20 × 20 tokens.
FINE: dict[str, Any] = {"autoencoder": {"name": "pixel", "stride": 2}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("graphs")
    for i in range(20):
        files.picture(root / "data" / f"{i:02d}.png", SIZES[i % 5], grey=i)
    dataset.scan_recipe(recipe(root))
    return root


def recipe(folder: Path, *, train: dict[str, Any] | None = None, **buckets: Any) -> Recipe:
    entries = [
        {"resolution": "80px", "num_frames": 1, "batch_size": 2, "keep_prob": 0.7},
        {"resolution": "48px", "num_frames": 1, "batch_size": 3},
    ]
    settings = {"max_crop": 0.6, "upscale": True, "incomplete_batch": "pad"}
    return files.recipe(
        folder, bucket=entries, buckets=settings | buckets, train={"max_steps": 1} | (train or {}), **FINE
    )


def told(made: Recipe) -> PlannedGraphs:
    return plan_forecast.forecast(made, 1).graphs


def test_token_families_follow_compilation(folder: Path) -> None:
    assert recipe(folder).buckets.token_families is None
    assert recipe(folder, train={"compile": True}).buckets.token_families is True
    assert recipe(folder, train={"compile": True}, token_families=False).buckets.token_families is False


def test_families_need_fewer_graphs_and_their_cost_is_told(folder: Path) -> None:
    free = told(recipe(folder, train={"compile": True}, token_families=False))
    some = told(recipe(folder, train={"compile": True}))
    one = told(recipe(folder, train={"compile": True}, token_family_crop=0.5))
    assert free.families is None
    assert free.graphs >= some.graphs >= one.graphs == 2
    assert free.graphs > one.graphs
    assert one.families.token_counts == 2
    assert one.families.crop > some.families.crop > some.families.free_crop
    (sizes, graphs) = compiled_graphs.lines(one)
    assert f"2 instead of {one.families.free_token_counts}" in sizes
    assert sizes.endswith(f"pixels {100 * one.families.area - 100:+.1f}%")
    assert graphs == "graphs to compile: 2 of at most 32"
    assert compiled_graphs.lines(told(recipe(folder))) == []


def test_the_graphs_are_those_that_training_chooses(folder: Path) -> None:
    made = recipe(folder, train={"compile": True, "compile_graphs": 1}, token_family_crop=0.5)
    data = RecipeData.open(made)
    plan = begin_epoch(data, data.plan_spec(1, 1), epoch=0).plan
    value, chosen = told(made), compiled_graphs.choose(data, plan)
    assert value.eager_buckets == [data.table.buckets[i].name for i in chosen.eager]
    assert {data.table.buckets[i].entry for i in chosen.eager} == {1}  # those of 48px train fewer tokens
    eager = sum(b.micro_batches for b in plan_forecast.forecast(made, 1).buckets if b.name.startswith("48px"))
    assert value.eager_micro_batches == eager > 0
    assert "leaves no graph for 48px" in compiled_graphs.lines(value)[-1]


def test_micro_batches_that_lack_clips_run_eagerly(folder: Path) -> None:
    made = recipe(folder, train={"compile": True}, incomplete_batch="partial")
    summary = plan_forecast.forecast(made, 1)
    assert summary.graphs.eager_micro_batches == summary.incomplete > 0
    assert told(recipe(folder, train={"compile": True})).eager_micro_batches == 0
