"""Twenty pictures of seven aspect ratios at batch size 4: twenty trained per epoch, whatever is chosen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import prepare_files as files
import pytest

from reelworks.core import results
from reelworks.training.encoding import reachable
from reelworks.training.memory import memory
from reelworks.training.plan import plan_report
from reelworks.training.recipe import dataset
from reelworks.training.recipe.dataset import RecipeData

SIZES = [(96, 96), (128, 72), (72, 128), (96, 128), (128, 96), (64, 150), (150, 64)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("subjects")
    for i in range(20):
        files.picture(root / "data" / f"{i:02d}.png", SIZES[i % 7], grey=i)
    dataset.scan_recipe(files.recipe(root))
    return root


def open_data(folder: Path, incomplete_batch: str, small: str = "48px", **of_entries: float) -> RecipeData:
    recipe = files.recipe(
        folder,
        bucket=[{"resolution": size, "num_frames": 1, "batch_size": 4, **of_entries} for size in ("80px", small)],
        buckets={
            "aspect_ratios": ["1:1", "16:9", "9:16", "4:3", "3:4", "21:9", "9:21"],
            "incomplete_batch": incomplete_batch,
            "max_crop": 0.6,
        },
    )
    return RecipeData.open(recipe)


@pytest.mark.parametrize("incomplete_batch", ["partial", "pad", "merge", "repeat"])
def test_all_are_trained_in_every_epoch(folder: Path, incomplete_batch: str) -> None:
    data = open_data(folder, incomplete_batch)
    spec = data.plan_spec(2, 1)
    for epoch in range(3):
        made = data.plan(spec, epoch)
        assert made.num_steps > 0
        assert sorted(made.uid[made.is_first_use].tolist()) == sorted(data.rows.uid.tolist())
        told = results.as_json(plan_report.summarise(data, spec, made, world=2, epoch=epoch))
        assert told["planned"] == sum(bucket["clips"] for bucket in told["buckets"]) == 20
        full = np.diff(made.offsets) == 4
        assert full.all() == (incomplete_batch in ("pad", "repeat"))


@pytest.mark.parametrize("incomplete_batch", ["partial", "pad", "merge", "repeat"])
@pytest.mark.parametrize("of_entries", [{}, {"batch_size": 1000}, {"batch_size": 1000, "keep_prob": 0.5}])
@pytest.mark.parametrize("ranks", [1, 2])
def test_no_micro_batch_is_larger_than_those_that_memory_is_tried_with(
    folder: Path, incomplete_batch: str, of_entries: dict[str, float], ranks: int
) -> None:
    """`ranks` train whole micro-batches side by side, as a column of the plan."""
    data = open_data(folder, incomplete_batch, **of_entries)
    buckets = tuple(replace(bucket, parts=ranks) for bucket in data.table.buckets)
    data = data.with_table(replace(data.table, buckets=buckets))
    spec, size = data.plan_spec(2, 1), of_entries.get("batch_size", 4)
    plans = [data.plan(spec, epoch) for epoch in range(4)]
    largest = np.zeros((len(plans), len(buckets)), dtype=np.int64)
    for of_epoch, plan in zip(largest, plans, strict=True):
        np.maximum.at(of_epoch, plan.micro_bucket, -(-np.diff(plan.offsets) // ranks))
    tried = memory.table_of_plans(data).batch_sizes()
    assert (tried >= largest).all()
    assert (tried == (size if incomplete_batch in ("pad", "repeat") else min(size, -(-20 // ranks)))).all()
    if not reachable.varies(data):
        of_plan = memory.table_of_plans(data, plans[0]).batch_sizes()
        used = largest[0] > 0
        assert (of_plan[used] == largest[:, used]).all()


def test_merged_ones_are_few_and_shown_smaller_but_never_enlarged(folder: Path) -> None:
    data = open_data(folder, "merge", small="48x48")
    entries = data.entries(0)
    made = data.plan(data.plan_spec(2, 1), 0)
    home = dict(zip(entries.uid.tolist(), entries.bucket.tolist(), strict=True))
    moved = 0
    for uid, ordinal, bucket in zip(made.uid.tolist(), made.ordinal, made.bucket.tolist(), strict=True):
        row = int(np.searchsorted(data.rows.ordinal, ordinal))
        shape = data.table.buckets[bucket].shape
        assert shape.height <= data.rows.height[row]
        assert shape.width <= data.rows.width[row]
        moved += bucket != home[uid]
    assert 0 < moved < 20


def test_a_merged_clip_is_cropped_within_the_limit(tmp_path: Path) -> None:
    """Its own crop counts: between the two buckets it would be small enough."""
    for i in range(8):
        files.picture(tmp_path / "data" / f"{i}.png", (48, 96) if i < 5 else (32, 48), grey=i)
    bucket = [{"resolution": size, "num_frames": 1, "batch_size": 4} for size in ("48x80", "32x48")]
    planned = {}
    for limit in (0.2, 0.3):
        rules = {"max_crop": limit, "incomplete_batch": "merge"}
        data = files.opened(files.recipe(tmp_path, bucket=bucket, buckets=rules))
        counts = np.bincount(data.plan(data.plan_spec(1, 1), 0).bucket)
        planned[limit] = {data.table.buckets[i].name: int(n) for i, n in enumerate(counts)}
    assert [*planned[0.2].values()] == [5, 3]  # 48 x 96 loses a sixth in 48 x 80, and a quarter in 32 x 48
    assert [*planned[0.3].values()] == [4, 4]
