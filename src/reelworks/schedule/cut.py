"""Runs of clips of one bucket, cut into micro-batches of its size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]


@dataclass(frozen=True)
class Cut:
    """Micro-batches over clips that lie bucket by bucket.

    Attributes:
        bucket: Of each micro-batch.
        clips: How many clips of its own each micro-batch has.
        length: How many places it has; more than clips where it is padded.
    """

    bucket: I64
    clips: I64
    length: I64

    @property
    def offsets(self) -> I64:
        """Starts in the places, with the total at the end."""
        return np.concatenate([[0], np.cumsum(self.length)]).astype(np.int64)

    def source(self) -> I64 | None:
        """The clip behind each place, None where each place has its own.

        What pads repeats the micro-batch's own clips in turn: same bucket, nothing else to decode.
        """
        short = np.flatnonzero(self.length > self.clips)
        if not len(short):
            return None
        starts = np.cumsum(self.clips) - self.clips
        missing = (self.length - self.clips)[short]
        turn = np.arange(int(missing.sum())) - np.repeat(np.cumsum(missing) - missing, missing)
        repeated = np.repeat(starts[short], missing) + turn % np.repeat(self.clips[short], missing)
        after = np.repeat((starts + self.clips)[short], missing)
        return np.insert(np.arange(int(self.clips.sum())), after, repeated)

    def real(self) -> NDArray[np.bool_]:
        """False for the places that pad."""
        result = np.ones(int(self.length.sum()), dtype=np.bool_)
        offsets = self.offsets
        for m in np.flatnonzero(self.length > self.clips):  # at most one for each bucket
            result[offsets[m] + self.clips[m] : offsets[m + 1]] = False
        return result


def runs(bucket: I64) -> tuple[I64, I64]:
    """Starts and lengths of the runs of equal buckets."""
    starts = np.flatnonzero(np.concatenate([[len(bucket) > 0], bucket[1:] != bucket[:-1]])[: len(bucket)])
    return starts, np.diff(np.append(starts, len(bucket)))


def cut(bucket: I64, batch_sizes: tuple[int, ...], *, pad: bool) -> Cut:
    """Cut into micro-batches; only the last of a bucket may have fewer clips than the batch size."""
    starts, counts = runs(bucket)
    size = np.array(batch_sizes, dtype=np.int64)[bucket[starts]]
    micro_batches = -(-counts // size)
    run = np.repeat(np.arange(len(starts)), micro_batches)
    within = np.arange(len(run)) - np.repeat(np.cumsum(micro_batches) - micro_batches, micro_batches)
    clips = np.minimum(size[run], counts[run] - within * size[run])
    return Cut(bucket[starts][run], clips, size[run] if pad else clips)
