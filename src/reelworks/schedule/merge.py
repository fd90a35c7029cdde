"""Clips of incomplete micro-batches moved to other buckets, where they fill up micro-batches."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from reelworks.schedule.cut import runs

I64 = NDArray[np.int64]


def merge(bucket: I64, batch_sizes: tuple[int, ...], merge_to: tuple[int, ...]) -> tuple[I64, I64]:
    """Move what buckets have beyond whole micro-batches to the buckets named for it, where that saves any.

    A bucket takes what all its givers have left over, or none of it where there would be as many
    micro-batches as before. What arrived lies before the bucket's own clips, so that own ones go on to
    the next bucket rather than the same ones again.

    Args:
        bucket: Bucket of each clip, ascending.
        batch_sizes: Per bucket.
        merge_to: Per bucket one of a higher index, or -1.

    Returns:
        Order of the clips and their buckets then, ascending.
    """
    starts, counts = runs(bucket)
    clips = [np.zeros(0, dtype=np.int64) for _ in batch_sizes]
    for first, count in zip(starts.tolist(), counts.tolist(), strict=True):
        clips[bucket[first]] = np.arange(first, first + count)
    givers: list[list[int]] = [[] for _ in batch_sizes]
    for index, size in enumerate(batch_sizes):
        rests = {g: len(clips[g]) % batch_sizes[g] for g in givers[index]}
        here, arriving = len(clips[index]), sum(rests.values())
        if -(-(here + arriving) // size) < -(-here // size) + sum(rest > 0 for rest in rests.values()):
            clips[index] = np.concatenate(
                [*(clips[g][len(clips[g]) - rests[g] :] for g in rests), clips[index]]
            )
            for giver, rest in rests.items():
                clips[giver] = clips[giver][: len(clips[giver]) - rest]
        if (to := merge_to[index]) >= 0:
            assert to > index
            givers[to].append(index)
    lengths = [len(of_bucket) for of_bucket in clips]
    return np.concatenate(clips), np.repeat(np.arange(len(clips)), lengths)
