"""Cut clips of one bucket into micro-batches, fill up incomplete ones from other buckets, and group them into steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reelworks.core import hash_rng
from reelworks.core.hash_rng import Purpose

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
    """Contents of the places of a cut.

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


def cut_micro_batches(bucket: I64, batch_sizes: tuple[int, ...], *, whole: bool) -> Cut:
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


def merge_into_larger(
    bucket: I64, batch_sizes: tuple[int, ...], merge_to: tuple[int, ...]
) -> tuple[I64, I64]:
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


def group_into_steps(
    micro_bucket: I64,
    costs: I64,
    *,
    micro_batches_per_step: int,
    same_bucket_run: int,
    seed: int,
    epoch: int,
    window: I64 | None = None,
) -> I64:
    """Group micro-batches that lie bucket by bucket into rows of `[steps, G]`, -1 where a row has none.

    A row takes its slots from different buckets where possible. The order of the rows is a hash of their
    number, so a bucket's steps lie anywhere in the epoch, and elsewhere in the next one.

    Args:
        micro_bucket: Bucket of each micro-batch.
        costs: What each micro-batch costs.
        micro_batches_per_step: `G`.
        same_bucket_run: `L`.
        seed: The recipe's.
        epoch: From 0.
        window: Of each micro-batch. Rows then follow window after window, and are shuffled inside of them.
    """
    per_row = micro_batches_per_step // same_bucket_run
    slots = _slots(micro_bucket, costs, same_bucket_run)
    if not len(slots):
        return np.zeros((0, micro_batches_per_step), dtype=np.int64)
    n_rows = -(-len(slots) // per_row)
    grid: I64 = np.full((n_rows * per_row, same_bucket_run), -1, dtype=np.int64)
    grid[: len(slots)] = slots
    if window is None:
        # Slots lie bucket by bucket; dealt out like cards, a row gets slots that are n_rows apart.
        dealt: I64 = grid.reshape(per_row, n_rows, same_bucket_run).transpose(1, 0, 2)
        order = np.argsort(hash_rng.hash64(seed, epoch, np.arange(n_rows), Purpose.STEP_ORDER), kind="stable")
    else:
        hashed = hash_rng.hash64(seed, epoch, np.arange(len(slots)), Purpose.SLOT_ORDER)
        gap_last = slots[:, -1] < 0
        grid[: len(slots)] = slots[np.lexsort((hashed, window[slots[:, 0]], gap_last))]
        dealt, order = grid, np.arange(n_rows)
    result = dealt.reshape(n_rows, -1)
    # Real columns first, so that empty ones can be left out for all ranks at once.
    gaps = np.flatnonzero((result < 0).any(axis=1))
    result[gaps] = np.take_along_axis(
        result[gaps], np.argsort(result[gaps] < 0, axis=1, kind="stable"), axis=1
    )
    return np.ascontiguousarray(result[order])


def _slots(micro_bucket: I64, costs: I64, width: int) -> I64:
    """Slots of `width` micro-batches: those of one bucket, then the left over ones by cost."""
    index = np.arange(len(micro_bucket), dtype=np.int64)
    starts, counts = runs(micro_bucket)
    within = index - np.repeat(starts, counts)
    whole = within < np.repeat(counts // width * width, counts)
    left = index[~whole]
    left = left[np.argsort(costs[left], kind="stable")]
    padded = np.full(-(-len(left) // width) * width, -1, dtype=np.int64)
    padded[: len(left)] = left
    return np.concatenate([index[whole].reshape(-1, width), padded.reshape(-1, width)])
