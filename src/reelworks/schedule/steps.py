"""Micro-batches grouped into slots of one bucket, slots into steps (rows), rows shuffled."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from reelworks.core import draws
from reelworks.core.draws import Purpose
from reelworks.schedule.cut import runs

I64 = NDArray[np.int64]


def rows(
    micro_bucket: I64,
    costs: I64,
    *,
    micro_batches_per_step: int,
    slot_width: int,
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
        slot_width: `L`.
        seed: The recipe's.
        epoch: From 0.
        window: Of each micro-batch. Rows then follow window after window, and are shuffled inside of them.
    """
    per_row = micro_batches_per_step // slot_width
    slots = _slots(micro_bucket, costs, slot_width)
    if not len(slots):
        return np.zeros((0, micro_batches_per_step), dtype=np.int64)
    n_rows = -(-len(slots) // per_row)
    grid: I64 = np.full((n_rows * per_row, slot_width), -1, dtype=np.int64)
    grid[: len(slots)] = slots
    if window is None:
        # Slots lie bucket by bucket; dealt out like cards, a row gets slots that are n_rows apart.
        dealt: I64 = grid.reshape(per_row, n_rows, slot_width).transpose(1, 0, 2)
        order = np.argsort(draws.hash64(seed, epoch, np.arange(n_rows), Purpose.STEP_ORDER), kind="stable")
    else:
        hashed = draws.hash64(seed, epoch, np.arange(len(slots)), Purpose.SLOT_ORDER)
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
