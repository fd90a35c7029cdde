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
        length: How many places it has; more than clips where something fills it.
    """

    bucket: I64
    clips: I64
    length: I64

    @property
    def offsets(self) -> I64:
        """Starts in the places, with the total at the end."""
        return np.concatenate([[0], np.cumsum(self.length)]).astype(np.int64)

    def fill(self, *, repeat: bool) -> Fill:
        """Say what takes the places that a micro-batch has beyond its own clips.

        What pads are the micro-batch's own clips in turn: same bucket, nothing else to decode. What is shown
        once more are clips of the bucket from its first one on, so that the own ones come last.

        Args:
            repeat: Second showings in place of weight-0 copies.
        """
        places = np.arange(int(self.clips.sum()))
        showing = np.zeros(int(self.length.sum()), dtype=np.int32)
        short = np.flatnonzero(self.length > self.clips)  # at most one for each bucket
        if not len(short):
            return Fill(places, showing)
        ends = np.cumsum(self.clips)
        starts, offsets = ends - self.clips, self.offsets
        run_starts, _ = runs(self.bucket)
        fills = []
        for m in short.tolist():
            first = run_starts[np.searchsorted(run_starts, m, side="right") - 1] if repeat else m
            among = int(ends[m] - starts[first])
            turn = np.arange(int(self.length[m] - self.clips[m]))
            fills.append(starts[first] + turn % among)
            showing[offsets[m] + self.clips[m] : offsets[m + 1]] = 1 + turn // among if repeat else -1
        after = np.repeat(ends[short], (self.length - self.clips)[short])
        return Fill(np.insert(places, after, np.concatenate(fills)), showing)


@dataclass(frozen=True)
class Fill:
    """What stands in the places of a cut.

    Attributes:
        source: The clip behind each place.
        showing: As in `EpochPlan`.
    """

    source: I64
    showing: NDArray[np.int32]


def runs(bucket: I64) -> tuple[I64, I64]:
    """Starts and lengths of the runs of equal buckets."""
    starts = np.flatnonzero(np.concatenate([[len(bucket) > 0], bucket[1:] != bucket[:-1]])[: len(bucket)])
    return starts, np.diff(np.append(starts, len(bucket)))


def cut(bucket: I64, batch_sizes: tuple[int, ...], *, whole: bool) -> Cut:
    """Cut into micro-batches; only the last of a bucket may have fewer clips than the batch size.

    Args:
        bucket: Bucket of each clip, in runs.
        batch_sizes: Per bucket.
        whole: Give also that one as many places as the others.
    """
    starts, counts = runs(bucket)
    size = np.array(batch_sizes, dtype=np.int64)[bucket[starts]]
    micro_batches = -(-counts // size)
    run = np.repeat(np.arange(len(starts)), micro_batches)
    within = np.arange(len(run)) - np.repeat(np.cumsum(micro_batches) - micro_batches, micro_batches)
    clips = np.minimum(size[run], counts[run] - within * size[run])
    return Cut(bucket[starts][run], clips, size[run] if whole else clips)
