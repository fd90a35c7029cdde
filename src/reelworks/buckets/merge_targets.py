"""Which bucket takes the clips that another has too few of for a full micro-batch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from reelworks.buckets.table import Bucket, BucketTable, Entry


def targets(table: BucketTable) -> NDArray[np.int64]:
    """For every bucket the one that takes its clips at the least loss of tokens, -1 where none can.

    A bucket can take the clips of another of its kind (pictures or videos) if it asks for no more frames,
    height or width, so that whatever filled the one fills the other, and if the crop between the two is
    bearable. Its entry must not be switched off (a chance of 0). It always lies further down the table, so
    clips that move on and on come to an end.
    """
    result = np.full(len(table.buckets), -1, dtype=np.int64)
    for index, bucket in enumerate(table.buckets):
        able = [
            i
            for i, other in enumerate(table.buckets[index + 1 :], index + 1)
            if _used(table.entries[other.entry])
            and _asks_for_less(bucket, other)
            and kept(bucket, other) >= 1 - table.max_crop
        ]
        if able:
            result[index] = max(able, key=lambda i: _worth(bucket, table.buckets[i]))
    return result


def _used(entry: Entry) -> bool:
    return entry.keep_prob > 0 and entry.keep_length > 0


def kept(of: Bucket, by: Bucket) -> float:
    """Share of a frame of one bucket's aspect ratio that another's shows."""
    ratio = (of.shape.width * by.shape.height) / (of.shape.height * by.shape.width)
    return min(ratio, 1 / ratio)


def _asks_for_less(bucket: Bucket, other: Bucket) -> bool:
    a, b = bucket.shape, other.shape
    same_kind = (a.num_frames == 1) == (b.num_frames == 1)
    fits = b.num_frames <= a.num_frames and b.height <= a.height and b.width <= a.width
    return same_kind and fits and other.entry != bucket.entry


def _worth(bucket: Bucket, other: Bucket) -> tuple[float, int]:
    """Return the tokens that are left of a clip in another bucket: that bucket's, less what the crop takes."""
    return other.tokens * kept(bucket, other), other.tokens
