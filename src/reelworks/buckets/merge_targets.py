"""Merge targets: the bucket that takes the clips of another bucket's incomplete micro-batch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from reelworks.buckets.table import Bucket, BucketTable, Entry


def targets(table: BucketTable) -> NDArray[np.int64]:
    """Return for every bucket the one that takes its clips at the least loss of tokens, or -1.

    A bucket can take the clips of another of its kind (pictures or videos) if it needs no more frames, height or
    width, so that every clip that fills the one fills the other, and if the crop between the two is within
    `max_crop`. Its entry must not be switched off (a probability of 0). It always comes later in the table, so
    that repeated moves end.
    """
    result = np.full(len(table.buckets), -1, dtype=np.int64)
    for index, bucket in enumerate(table.buckets):
        able = [
            i
            for i, other in enumerate(table.buckets[index + 1 :], index + 1)
            if _used(table.entries[other.entry])
            and _needs_less(bucket, other)
            and kept(bucket, other) >= 1 - table.max_crop
        ]
        if able:
            result[index] = max(able, key=lambda i: _worth(bucket, table.buckets[i]))
    return result


def _used(entry: Entry) -> bool:
    return entry.keep_prob > 0 and entry.keep_length > 0


def kept(bucket: Bucket, other: Bucket) -> float:
    """Return the share of a frame of one bucket that a crop to the other's aspect ratio leaves."""
    ratio = (bucket.shape.width * other.shape.height) / (bucket.shape.height * other.shape.width)
    return min(ratio, 1 / ratio)


def _needs_less(bucket: Bucket, other: Bucket) -> bool:
    a, b = bucket.shape, other.shape
    same_kind = (a.num_frames == 1) == (b.num_frames == 1)
    fits = b.num_frames <= a.num_frames and b.height <= a.height and b.width <= a.width
    return same_kind and fits and other.entry != bucket.entry


def _worth(bucket: Bucket, other: Bucket) -> tuple[float, int]:
    """Rank a target by its tokens that show content of the clip, then by its tokens."""
    return other.tokens * kept(bucket, other), other.tokens
