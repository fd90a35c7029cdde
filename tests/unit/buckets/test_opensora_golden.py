"""The Open-Sora dialect puts every clip where the reference implementation puts it.

The golden numbers come from running that implementation (branch v1.2) on 5,000 clips that lie on every
edge: of lengths, of pixels, half way between two aspect ratios.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from reelworks.core.shape import Geometry
from reelworks.data.buckets import assign, table
from reelworks.data.buckets.assign import Clips, Reason
from reelworks.data.buckets.config import BucketsConfig
from reelworks.data.buckets.opensora import ratios
from reelworks.data.buckets.table import BucketTable

GOLDEN = Path(__file__).parents[2] / "golden" / "buckets"
# An autoencoder of stride 1: takes each of the fixed sizes.
ANY_SIZE = Geometry(stride=(1, 1, 1), patch=(1, 2, 2))
STAGES = ("stage1", "stage2", "stage3")
DROPPED = "dropped"


@functools.cache
def golden(name: str) -> Any:
    return json.loads((GOLDEN / name).read_text(encoding="utf-8"))


@functools.cache
def catalog() -> dict[str, NDArray[Any]]:
    columns = pq.read_table(GOLDEN / "bucket_catalog.parquet")
    return {name: columns[name].to_numpy() for name in ("id", "num_frames", "height", "width")}


def clips(frame_interval: int) -> Clips:
    rows = catalog()
    n = len(rows["id"])
    return Clips(
        uid=rows["id"].astype(np.uint64),
        copy=np.zeros(n, dtype=np.int64),
        num_frames=-(-rows["num_frames"] // frame_interval),
        height=rows["height"],
        width=rows["width"],
        is_image=rows["num_frames"] == 1,
        excluded=np.zeros(n, dtype=np.int8),
        held_out=np.zeros(n, dtype=np.bool_),
    )


def certain(stage: str, *, zeros_kept: bool) -> dict[str, Any]:
    """A stage's table with each probability 1, or with those that are 0 left so."""
    lengths = golden("bucket_random_counts.json")["bucket_configs"][stage]
    return {
        name: {t: [0.0 if zeros_kept and p == 0 else 1.0, b or 1] for t, (p, b) in entries.items()}
        for name, entries in lengths.items()
    }


def build(entries: dict[str, Any], probability: str = "opensora-1.2", compat: bool = True) -> BucketTable:
    config = BucketsConfig.model_validate(
        {"opensora": entries, "probability": probability, "opensora_drop_exact_length": compat}
    )
    return table.build([], config, ANY_SIZE)


def names(built: BucketTable, bucket: NDArray[np.int32]) -> list[str | None]:
    """Buckets as the golden files write them: resolution/frames/aspect."""
    texts = [f"{built.entries[b.entry].resolution}/{b.shape.num_frames}/{b.ratio}" for b in built.buckets]
    return [texts[i] if i >= 0 else None for i in bucket]


@pytest.mark.parametrize("multiple", ["16", "32"])
def test_computed_sizes_are_those_of_the_release(multiple: str) -> None:
    """Keys and sizes come in its order, for either autoencoder of 2.0."""
    for name, sizes in golden("computed_sizes.json")[multiple].items():
        found = ratios.resolution(name, computed=True, multiple=int(multiple))
        assert dict(zip(found.keys, map(list, found.sizes), strict=True)) == sizes
        assert list(found.keys) == list(sizes)


def test_fixed_sizes_are_those_of_the_release() -> None:
    for name, expected in golden("aspect_tables.json")["resolutions"].items():
        found = ratios.TABLES[name]
        assert found.pixels == expected["pixels"]
        assert list(zip(found.keys, map(list, found.sizes), strict=True)) == list(expected["ratios"].items())
    assert len(golden("aspect_tables.json")["resolutions"]) == len(ratios.TABLES) == 13


def test_the_nearest_ratio_is_that_of_the_release_in_ties_too() -> None:
    rows = golden("aspect_tables.json")["closest_ratio_queries"]["rows"]
    for name in ratios.TABLES:
        own = [row for row in rows if row[0] == name]
        height, width = (np.array([row[i] for row in own]) for i in (1, 2))
        picked = ratios.TABLES[name].nearest(height, width)
        assert [ratios.TABLES[name].keys[i] for i in picked] == [row[3] for row in own]


@pytest.mark.parametrize("stage", STAGES)
def test_the_number_of_buckets_is_that_of_the_release(stage: str) -> None:
    found = build(golden("bucket_random_counts.json")["bucket_configs"][stage])
    total = sum(len(entry.named.keys) for entry in found.entries if entry.named is not None)
    assert total == golden("bucket_random_counts.json")["num_bucket"][stage]


@pytest.mark.parametrize("column", ["all1", "all1_zeros_kept"])
@pytest.mark.parametrize("frame_interval", [1, 3])
@pytest.mark.parametrize("stage", STAGES)
def test_certain_clips_lie_where_the_release_puts_them(stage: str, frame_interval: int, column: str) -> None:
    built = build(certain(stage, zeros_kept=column != "all1"))
    result = assign.assign(clips(frame_interval), built, seed=1, epoch=0)
    file = pq.read_table(GOLDEN / "bucket_ids_deterministic.parquet")
    assert names(built, result.bucket) == file[f"{stage}_fi{frame_interval}_{column}"].to_pylist()
    assert ((result.bucket >= 0) == (result.reason == Reason.NONE)).all()


@pytest.mark.parametrize("frame_interval", [1, 3])
@pytest.mark.parametrize("stage", STAGES)
def test_without_compat_clips_of_exactly_a_length_gain_and_no_others(stage: str, frame_interval: int) -> None:
    entries, all_clips = certain(stage, zeros_kept=False), clips(frame_interval)
    strict, ours = build(entries), build(entries, compat=False)
    old = assign.assign(all_clips, strict, seed=1, epoch=0)
    new = assign.assign(all_clips, ours, seed=1, epoch=0)
    frames = np.array([b.shape.num_frames for b in ours.buckets])[new.bucket]
    exact = (new.bucket >= 0) & ~all_clips.is_image & (frames == all_clips.num_frames)
    assert np.array_equal(old.bucket != new.bucket, exact)
    assert exact.sum() > 20
    # Each of them now has its length, or a place at all; none is worse off in size.
    before = np.where(old.bucket >= 0, np.array([b.shape.num_frames for b in ours.buckets])[old.bucket], 0)
    assert (before[exact] != frames[exact]).any()
    area = np.array([ours.entries[b.entry].pixels for b in ours.buckets])
    assert (area[new.bucket][exact] >= np.where(old.bucket >= 0, area[old.bucket], 0)[exact]).all()


@pytest.mark.parametrize("frame_interval", [1, 3])
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.quick_cases(1)
def test_counts_with_real_probabilities_are_within_the_noise(stage: str, frame_interval: int) -> None:
    file = golden("bucket_random_counts.json")
    built = build(file["bucket_configs"][stage])
    all_clips = clips(frame_interval)
    seeds = [assign.assign(all_clips, built, seed=seed, epoch=0).bucket for seed in range(20)]
    counts = np.stack([np.bincount(bucket + 1, minlength=len(built.buckets) + 1) for bucket in seeds])
    per_bucket = {DROPPED: counts[:, 0]} | {
        name: counts[:, i + 1]
        for i, name in enumerate(names(built, np.arange(len(built.buckets), dtype=np.int32)))
        if name is not None
    }
    per_length: dict[str, Any] = {}
    for name, n in per_bucket.items():
        key = name.rpartition("/")[0] or DROPPED
        per_length[key] = per_length.get(key, 0) + n
    case = f"{stage}_fi{frame_interval}"
    _expect(per_length, file["per_resolution_frames_mean_std"][case])
    _expect(per_bucket, file["per_bucket_mean_std"][case])


def _expect(found: dict[str, Any], expected: dict[str, list[float]]) -> None:
    """Means of 20 seeds against those of the release, bucket by bucket; those it never filled too."""
    assert expected.keys() <= found.keys()
    for name, counts in found.items():
        mean, std = expected.get(name, [0.0, 0.0])
        assert abs(counts.mean() - mean) <= 5 * std * np.sqrt(2 / 20) + 1, (name, counts.mean(), mean, std)
