"""Measure how much an epoch discards of the clips that it trains: cropped borders, frames not read."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelworks.core import blocks
from reelworks.recipe.dataset import RecipeData
from reelworks.schedule.plan import EpochPlan, Samples

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
FILES_NAMED = 10
_ROUNDING = 1e-6  # smaller shares are rounding errors


def planned(plan: EpochPlan) -> Samples:
    """Return the clips of a plan with their buckets, each clip and repeat once."""
    first = plan.is_first_use
    own = slice(None) if first.all() else first  # else a copy of millions of clips is saved
    bucket, copy = (column[own].astype(np.int64, copy=False) for column in (plan.bucket, plan.copy))
    return Samples(plan.uid[own], copy, plan.ordinal[own], bucket)


def losses(data: RecipeData, plan: EpochPlan) -> dict[str, Any]:
    """Return how much of its clips an epoch discards.

    Returns:
        `crop`: the mean share of the frame's area that is cropped, in total and `by_bucket`, and the `worst` clips.
        `frames`: for videos, the frames `trained` of those available (`there`) at the frame rate of reading, in total
        and `by_bucket`; the number of clips with `less_than_half` of their frames trained, and the `longest` of these.
        `short_clips`: the number of videos shorter than their bucket. `below_rate`: the number of videos with a lower
        frame rate than `data.fps`, which keep their own. Means and sums count each repeat.
    """
    row, bucket = _in_row_order(data, plan)
    with ThreadPoolExecutor(1) as thread:  # numpy computes without Python's lock
        of_frames = thread.submit(frames, data, row, bucket)
        lost = lost_shares(data, row, bucket)
        crop = {
            "mean": float(lost.mean()) if len(lost) else 0.0,
            "by_bucket": _by_bucket(data, bucket, {"mean": lost}),
            "worst": worst(data, row, bucket, lost, FILES_NAMED),
        }
        return {"crop": crop, **of_frames.result(), "below_rate": below_rate(data, row)}


def _in_row_order(data: RecipeData, plan: EpochPlan) -> tuple[I64, I64]:
    """Return row and bucket of each clip and repeat by row: columns of millions are read several times as fast in order."""
    entries = planned(plan)
    bits = len(data.table.buckets).bit_length()
    words = (entries.ordinal << bits) | entries.bucket
    words.sort()
    return data.rows_at(words >> bits), words & ((1 << bits) - 1)


def below_rate(data: RecipeData, row: I64) -> int:
    """Return the number of videos with a frame rate lower than `data.fps`, each counted once."""
    rate, rows = data.spec.data.frame_rate, data.rows
    if rate is None:
        return 0
    row = np.unique(row)
    # 1 % is the difference between 24 and 23.976 frames per second, and more.
    return int(np.count_nonzero(rows.is_video[row] & (rows.fps[row] < 0.99 * rate)))


def lost_shares(data: RecipeData, row: I64, bucket: I64) -> F64:
    """Return the share of the frame's area that the crop to a bucket cuts away, for each pair of row and bucket."""
    shapes = [bucket.shape for bucket in data.table.buckets]
    heights, widths = (np.array([getattr(s, side) for s in shapes], dtype=np.float64) for side in ("height", "width"))

    def lost(row: I64, bucket: I64) -> F64:
        height, width = data.rows.height[row].astype(np.float64), data.rows.width[row].astype(np.float64)
        to_height, to_width = heights[bucket], widths[bucket]
        scale = np.maximum(to_height / height, to_width / width)
        return np.maximum(1 - to_height * to_width / (scale * scale * height * width), 0.0)

    return blocks.elementwise(lost, row, bucket, dtype=np.float64)


def worst(data: RecipeData, row: I64, bucket: I64, lost: F64, count: int) -> list[dict[str, Any]]:
    """Return the clips that lose most to cropping, each once, without those that lose nothing."""
    first = _largest(row, lost, count)
    return [
        {
            "path": label,
            "width": int(data.rows.width[r]),
            "height": int(data.rows.height[r]),
            "bucket": data.table.buckets[int(bucket[i])].name,
            "lost": float(lost[i]),
        }
        for i, r, label in zip(first.tolist(), row[first].tolist(), data.rows.labels(row[first]), strict=True)
    ]


def frames(data: RecipeData, row: I64, bucket: I64) -> dict[str, Any]:
    """Return `frames` and `short_clips` of `losses`."""
    is_video = np.flatnonzero(~data.rows.is_image[row])
    row, bucket = row[is_video], bucket[is_video]
    of_bucket = np.array([bucket.shape.num_frames for bucket in data.table.buckets], dtype=np.int64)
    available, wanted = blocks.taken(data.frames, row), of_bucket[bucket]
    trained = np.minimum(wanted, available)
    half = np.flatnonzero(2 * trained < available)
    longest = half[_largest(row[half], available[half], FILES_NAMED)]
    counts = {
        "trained": int(trained.sum()),
        "there": int(available.sum()),
        "by_bucket": _by_bucket(data, bucket, {"trained": trained, "there": available}),
        "less_than_half": _distinct(data, row[half]),
        "longest": [
            {
                "path": label,
                "bucket": data.table.buckets[int(bucket[i])].name,
                "trained": int(trained[i]),
                "there": int(available[i]),
            }
            for i, label in zip(longest.tolist(), data.rows.labels(row[longest]), strict=True)
        ],
    }
    return {"frames": counts, "short_clips": _distinct(data, row[available < wanted])}


def _distinct(data: RecipeData, row: I64) -> int:
    """Return the number of different rows."""
    found = np.zeros(len(data.rows), dtype=np.bool_)
    found[row] = True
    return int(np.count_nonzero(found))


def _by_bucket(data: RecipeData, bucket: I64, columns: dict[str, F64 | I64]) -> list[dict[str, Any]]:
    """Return means of float columns and sums of integer columns for the buckets that have clips."""
    n = len(data.table.buckets)
    clips = np.bincount(bucket, minlength=n)
    sums = {name: np.bincount(bucket, values, minlength=n) for name, values in columns.items()}
    return [
        {"name": data.table.buckets[i].name}
        | {
            name: float(total[i] / clips[i]) if columns[name].dtype.kind == "f" else int(total[i])
            for name, total in sums.items()
        }
        for i in np.flatnonzero(clips).tolist()
    ]


def _largest(clip: NDArray[Any], value: F64 | I64, count: int) -> I64:
    """Return the indices of the largest values, descending, one for each clip, without values of about 0."""
    end = count
    while True:  # look further only if repeats of the same clips make it necessary
        order = _descending(value, end)
        _, first = np.unique(clip[order], return_index=True)
        if len(first) >= count or len(order) < end:
            return order[np.sort(first)[:count]]
        end *= 4


def _descending(value: F64 | I64, count: int) -> I64:
    """Return the indices of the `count` largest values, descending and then by index, without values of about 0."""
    if count < len(value):
        least = np.partition(value, len(value) - count)[len(value) - count]
        candidates = np.flatnonzero(value >= least)
    else:
        candidates = np.arange(len(value))
    candidates = candidates[value[candidates] > _ROUNDING]
    order: I64 = candidates[np.argsort(-value[candidates], kind="stable")][:count]
    return order
