"""Measure what an epoch discards of the clips that it trains: borders cut away, frames not read."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelworks.media import decode
from reelworks.recipe.dataset import RecipeData
from reelworks.schedule.plan import Entries, EpochPlan

Json = dict[str, Any]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
FILES_NAMED = 10
_NOTHING = 1e-6  # a share that is rounding alone


def planned(plan: EpochPlan) -> Entries:
    """Clips of a plan in the buckets that train them, each once."""
    first = plan.first
    bucket = plan.bucket[first].astype(np.int64)
    return Entries(plan.uid[first], plan.copy[first].astype(np.int64), plan.ordinal[first], bucket)


def losses(data: RecipeData, plan: EpochPlan) -> Json:
    """Sum up what an epoch does not show.

    Returns:
        `crop`: the mean share of the picture that is cut away, in all and `by_bucket`, and the `worst` clips.
        `frames`: of the videos, frames `trained` of those `there` at the rate at which they are read, in all
        and `by_bucket`; how many clips show `less_than_half`, and the `longest` of these. `short_clips`: videos
        that are shorter than their bucket. Copies count each.
    """
    entries = planned(plan)
    row = data.rows_at(entries.ordinal)
    lost = lost_shares(data, entries)
    there, wanted = _frames_there(data, row), _frames_wanted(data, entries)
    return {
        "crop": {
            "mean": float(lost.mean()) if len(lost) else 0.0,
            "by_bucket": _by_bucket(data, entries, {"mean": lost}),
            "worst": worst(data, entries, lost, FILES_NAMED),
        },
        "frames": _frames(data, entries, row, np.minimum(wanted, there), there),
        "short_clips": short_clips(data, entries),
    }


def short_clips(data: RecipeData, entries: Entries) -> int:
    """Videos that are shorter than their bucket."""
    row = data.rows_at(entries.ordinal)
    return _clips(data, row[_frames_there(data, row) < _frames_wanted(data, entries)])


def lost_shares(data: RecipeData, entries: Entries) -> F64:
    """Share of the frame's area that each entry's bucket cuts away."""
    row = data.rows_at(entries.ordinal)
    height, width = data.rows.height[row].astype(np.float64), data.rows.width[row].astype(np.float64)
    shapes = [bucket.shape for bucket in data.table.buckets]
    to_height = np.array([s.height for s in shapes], dtype=np.float64)[entries.bucket]
    to_width = np.array([s.width for s in shapes], dtype=np.float64)[entries.bucket]
    scale = np.maximum(to_height / height, to_width / width)
    lost: F64 = 1 - to_height * to_width / (scale * scale * height * width)
    return np.maximum(lost, 0.0)


def worst(data: RecipeData, entries: Entries, lost: F64, count: int) -> list[Json]:
    """The clips of which crops cut most, each once; those that lose nothing are none of them."""
    first = _largest(entries, lost, count)
    row = data.rows_at(entries.ordinal[first])
    return [
        {
            "path": _path(data, r),
            "width": int(data.rows.width[r]),
            "height": int(data.rows.height[r]),
            "bucket": data.table.buckets[int(entries.bucket[i])].name,
            "lost": float(lost[i]),
        }
        for i, r in zip(first.tolist(), row.tolist(), strict=True)
    ]


def _frames_wanted(data: RecipeData, entries: Entries) -> I64:
    frames = np.array([bucket.shape.num_frames for bucket in data.table.buckets], dtype=np.int64)
    return frames[entries.bucket]


def _frames_there(data: RecipeData, row: I64) -> I64:
    rows = data.rows
    frames = decode.frames_available(rows.num_frames[row], np.maximum(rows.fps[row], 1e-6), data.recipe.data)
    return np.where(data.rows.is_image[row], 1, frames)


def _frames(data: RecipeData, entries: Entries, row: I64, trained: I64, there: I64) -> Json:
    video = ~data.rows.is_image[row]
    of_video = entries.take(np.flatnonzero(video))
    trained, there, row = trained[video], there[video], row[video]
    half = np.flatnonzero(2 * trained < there)
    longest = half[_largest(of_video.take(half), there[half], FILES_NAMED)]
    return {
        "trained": int(trained.sum()),
        "there": int(there.sum()),
        "by_bucket": _by_bucket(data, of_video, {"trained": trained, "there": there}),
        "less_than_half": _clips(data, row[half]),
        "longest": [
            {
                "path": _path(data, int(row[i])),
                "bucket": data.table.buckets[int(of_video.bucket[i])].name,
                "trained": int(trained[i]),
                "there": int(there[i]),
            }
            for i in longest.tolist()
        ],
    }


def _clips(data: RecipeData, row: I64) -> int:
    """How many clips these are, copies of one counted once."""
    there = np.zeros(len(data.rows), dtype=np.bool_)
    there[row] = True
    return int(there.sum())


def _by_bucket(data: RecipeData, entries: Entries, columns: dict[str, F64 | I64]) -> list[Json]:
    """Means of shares and sums of counts, of the buckets that have clips."""
    n = len(data.table.buckets)
    clips = np.bincount(entries.bucket, minlength=n)
    sums = {name: np.bincount(entries.bucket, values, minlength=n) for name, values in columns.items()}
    return [
        {"name": data.table.buckets[i].name}
        | {
            name: float(of[i] / clips[i]) if columns[name].dtype.kind == "f" else int(of[i])
            for name, of in sums.items()
        }
        for i in np.flatnonzero(clips).tolist()
    ]


def _largest(entries: Entries, value: F64 | I64, count: int) -> I64:
    """Places of the largest values, descending, one for each clip; those that are nothing left out."""
    order = np.argsort(-value, kind="stable")
    order = order[value[order] > _NOTHING]
    looked_at = count
    while True:  # only as far as copies of the same clips make it necessary
        _, first = np.unique(entries.uid[order[:looked_at]], return_index=True)
        if len(first) >= count or looked_at >= len(order):
            return order[np.sort(first)[:count]]
        looked_at *= 4


def _path(data: RecipeData, row: int) -> str:
    return f"{data.rows.dataset[row].as_py()}/{data.rows.path[row].as_py()}"
