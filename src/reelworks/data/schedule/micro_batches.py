"""Cut clips into micro-batches of one bucket, fill or merge incomplete ones, and group them into steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reelworks.core import blocks, hash_rng
from reelworks.core.arrays import I32, I64, Integers, Mask
from reelworks.core.hash_rng import Purpose


@dataclass(frozen=True)
class Cut:
    """Micro-batches over clips that are sorted by bucket."""

    bucket: Integers  # bucket of each micro-batch
    clips: Integers  # number of each micro-batch's own clips
    length: Integers  # number of its places, which exceeds `clips` if copies or repeats fill it

    @property
    def offsets(self) -> I64:
        """First place of each micro-batch, with the total number of places at the end."""
        offsets = np.zeros(len(self.length) + 1, dtype=np.int64)
        np.cumsum(self.length, out=offsets[1:])
        return offsets

    def fill(self, *, repeat: bool) -> tuple[I64 | None, I32]:
        """Return the index of the clip in each place, None if it is the place's own, and `repeat_index` as in `EpochPlan`.

        Places beyond a micro-batch's own clips have weight-0 copies or, with `repeat`, repeats. Copies are
        the micro-batch's own clips in turn: they have the same bucket and are decoded anyway. Repeats are clips of
        the bucket from its first one on, so that the micro-batch's own clips come last.
        """
        repeat_index = np.zeros(int(self.length.sum()), dtype=np.int32)
        short = np.flatnonzero(self.length > self.clips)  # at most one for each bucket
        if not len(short):
            return None, repeat_index
        ends = np.cumsum(self.clips)
        starts, offsets = ends - self.clips, self.offsets
        run_starts, _ = runs(self.bucket)
        places = np.empty(len(repeat_index), dtype=np.int64)
        done = 0
        for m in short.tolist():
            own, end = int(offsets[m] + self.clips[m]), int(offsets[m + 1])
            first = run_starts[np.searchsorted(run_starts, m, side="right") - 1] if repeat else m
            among = int(ends[m] - starts[first])
            turn = np.arange(end - own)
            places[done:own] = np.arange(int(ends[m]) - (own - done), int(ends[m]))
            places[own:end] = starts[first] + turn % among
            repeat_index[own:end] = 1 + turn // among if repeat else -1
            done = end
        places[done:] = np.arange(int(ends[-1]) - (len(places) - done), int(ends[-1]))
        return places, repeat_index


def runs(bucket: Integers) -> tuple[I64, I64]:
    """Return the starts and lengths of the runs of equal buckets."""
    starts = np.flatnonzero(np.concatenate([[len(bucket) > 0], bucket[1:] != bucket[:-1]])[: len(bucket)])
    return starts, np.diff(np.append(starts, len(bucket)))


def cut_micro_batches(bucket: Integers, batch_sizes: tuple[int, ...], *, whole: bool) -> Cut:
    """Cut clips, given by their buckets in runs, into micro-batches; only the last of a bucket may have too few clips.

    With `whole`, incomplete micro-batches have as many places as the batch size too.
    """
    starts, counts = runs(bucket)
    size = np.array(batch_sizes, dtype=np.int64)[bucket[starts]]
    micro_batches = -(-counts // size)
    length = np.repeat(blocks.narrow(size), micro_batches)
    clips = length.copy()
    clips[np.cumsum(micro_batches) - 1] = counts - (micro_batches - 1) * size
    return Cut(np.repeat(bucket[starts], micro_batches), clips, length if whole else clips)


def merge_into_larger(
    bucket: Integers, batch_sizes: tuple[int, ...], merge_to: tuple[int, ...], may_move: Mask | None = None
) -> tuple[I64, I64]:
    """Move the clips of incomplete micro-batches to each bucket's merge target if that saves micro-batches.

    A target takes the left-over clips of all its source buckets, or none if that would not reduce the number of
    micro-batches. Moved clips precede the target's own clips, so that the target in turn passes on its own clips, if they
    are as many, and no clip is moved repeatedly: each move was found to be within `max_crop`, and two may not be.

    `bucket` is that of each clip, ascending; `merge_to` is the target of each bucket, which has a higher index, or -1.
    Without enough clips that `may_move`, a bucket passes on none.
    Returns the new order of the clips, and the bucket of each in that order, ascending.
    """
    starts, counts = runs(bucket)
    clips = [np.zeros(0, dtype=np.int64) for _ in batch_sizes]
    for first, count in zip(starts.tolist(), counts.tolist(), strict=True):
        clips[bucket[first]] = np.arange(first, first + count)
    movable = clips.copy() if may_move is None else [of_bucket[may_move[of_bucket]] for of_bucket in clips]
    sources: list[list[int]] = [[] for _ in batch_sizes]
    for index, size in enumerate(batch_sizes):
        rests = {g: rest for g in sources[index] if (rest := len(clips[g]) % batch_sizes[g]) <= len(movable[g])}
        own, arriving = len(clips[index]), sum(rests.values())
        if -(-(own + arriving) // size) < -(-own // size) + sum(rest > 0 for rest in rests.values()):
            moved = {g: movable[g][len(movable[g]) - rest :] for g, rest in rests.items()}
            clips[index] = np.concatenate([*moved.values(), clips[index]])
            for source, gone in moved.items():
                clips[source] = clips[source][~np.isin(clips[source], gone)]
        if (to := merge_to[index]) >= 0:
            assert to > index
            sources[to].append(index)
    return np.concatenate(clips), np.repeat(np.arange(len(clips)), [len(of_bucket) for of_bucket in clips])


def group_into_steps(
    micro_bucket: Integers,
    costs: I64,
    *,
    micro_batches_per_step: int,
    same_bucket_run: int,
    seed: int,
    epoch: int,
    window: Integers | None = None,
) -> Integers:
    """Group micro-batches that are sorted by bucket into steps, `[num_steps, G]`, -1 for empty columns.

    A step takes its slots from different buckets if possible. Steps are ordered by a hash of their number, so those
    of a bucket are spread over the epoch, differently in each epoch.

    With windows of the micro-batches, steps follow window by window, shuffled within each.
    """
    slots_per_step = micro_batches_per_step // same_bucket_run
    slots = _slots(micro_bucket, costs, same_bucket_run)
    if not len(slots):
        return np.zeros((0, micro_batches_per_step), dtype=slots.dtype)
    num_steps = -(-len(slots) // slots_per_step)
    grid = np.full((num_steps * slots_per_step, same_bucket_run), -1, dtype=slots.dtype)
    grid[: len(slots)] = slots
    if window is None:
        # Slots are sorted by bucket; dealt out like cards, a step gets slots that are num_steps apart.
        dealt: Integers = grid.reshape(slots_per_step, num_steps, same_bucket_run).transpose(1, 0, 2)
        order = np.argsort(hash_rng.hash64(seed, epoch, np.arange(num_steps), Purpose.STEP_ORDER), kind="stable")
    else:
        hashed = hash_rng.hash64(seed, epoch, np.arange(len(slots)), Purpose.SLOT_ORDER)
        grid[: len(slots)] = slots[np.lexsort((hashed, window[slots[:, 0]], slots[:, -1] < 0))]  # gaps come last
        dealt, order = grid, np.arange(num_steps)
    result = dealt.reshape(num_steps, -1)
    # Real columns come first, so that all ranks can skip empty ones together.
    gaps = np.flatnonzero((result < 0).any(axis=1))
    result[gaps] = np.take_along_axis(result[gaps], np.argsort(result[gaps] < 0, axis=1, kind="stable"), axis=1)
    return np.ascontiguousarray(result[order])


def _slots(micro_bucket: Integers, costs: I64, width: int) -> Integers:
    """Return slots of `width` micro-batches: those of one bucket, then the left-over micro-batches by cost."""
    starts, counts = runs(micro_bucket)
    in_full_slot = np.ones(len(micro_bucket), dtype=np.bool_)
    for end, rest in zip((starts + counts).tolist(), (counts % width).tolist(), strict=True):
        in_full_slot[end - rest : end] = False
    left = np.flatnonzero(~in_full_slot)
    left = left[np.argsort(costs[left], kind="stable")]
    full = blocks.indices(in_full_slot)
    padded = np.full(-(-len(left) // width) * width, -1, dtype=full.dtype)
    padded[: len(left)] = left
    return np.concatenate([full.reshape(-1, width), padded.reshape(-1, width)])
