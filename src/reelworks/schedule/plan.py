"""The plan of an epoch: which clips form which micro-batch, which micro-batches form which step.

1. Clips are ordered by (bucket, hash of (seed, epoch, uid, copy)): a full shuffle inside each bucket
   that stays as it is when other clips come or go.
2. Each bucket is cut into micro-batches of its size; the last may be incomplete.
3. `L` micro-batches of one bucket make a slot, `G / L` slots make a step (a *row*), of different buckets
   where possible. What is left over per bucket is grouped with its likes in cost.
4. Rank `r` of `W` takes the columns `r, r + W, ...` of a row. The global batch is the same for every `W`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from reelworks.core import digests, draws
from reelworks.core.draws import Purpose

PLANNER_VERSION = 1
I64 = NDArray[np.int64]


@dataclass(frozen=True)
class Entries:
    """What an epoch has to train: one place for each clip and copy.

    Attributes:
        uid: Identity of the clip.
        copy: Which repeat, from 0.
        ordinal: The clip's row in the catalog.
        bucket: Index into the bucket table.
    """

    uid: NDArray[np.uint64]
    copy: I64
    ordinal: I64
    bucket: I64

    def take(self, where: NDArray[np.bool_] | I64) -> Entries:
        """Entries at the given places."""
        return Entries(self.uid[where], self.copy[where], self.ordinal[where], self.bucket[where])

    def __len__(self) -> int:
        return len(self.uid)


@dataclass(frozen=True)
class PlanSpec:
    """All that shapes a plan besides the entries.

    Attributes:
        seed: The recipe's seed.
        micro_batches_per_step: `G`.
        slot_width: `L`, a divisor of `G`.
        incomplete_batch: "partial" or "pad".
        batch_sizes: Per bucket.
        costs_us: Whole microseconds that one clip of each bucket takes.
        buckets_digest: Digest of the table, since equal numbers may mean other shapes.
        planner_version: Changes whenever the same arguments would give another plan.
    """

    seed: int
    micro_batches_per_step: int
    slot_width: int
    incomplete_batch: str
    batch_sizes: tuple[int, ...]
    costs_us: tuple[int, ...]
    buckets_digest: str
    planner_version: int = PLANNER_VERSION

    def digest(self) -> str:
        """Digest of all fields."""
        return digests.digest_json(asdict(self))


@dataclass(frozen=True)
class EpochPlan:
    """An epoch, or the rest of one, as arrays.

    Attributes:
        uid, copy, ordinal, bucket: One element for each place; micro-batch `m` owns the places
            `offsets[m]:offsets[m + 1]`.
        real: False where a place is a weight-0 copy that pads an incomplete micro-batch.
        offsets: Starts of the micro-batches in the places, with the total at the end.
        rows: `[steps, G]` micro-batch indices, -1 where a row has none; real ones come first.
    """

    uid: NDArray[np.uint64]
    copy: I64
    ordinal: I64
    bucket: I64
    real: NDArray[np.bool_]
    offsets: I64
    rows: I64

    @property
    def steps(self) -> int:
        """Optimizer steps of the plan."""
        return len(self.rows)

    @property
    def planned(self) -> int:
        """Clips that the plan trains, copies that pad not counted."""
        return int(self.real.sum())

    def places(self, micro_batch: int) -> slice:
        """Places of a micro-batch."""
        return slice(int(self.offsets[micro_batch]), int(self.offsets[micro_batch + 1]))

    def micro_batches(self, row: int) -> I64:
        """Micro-batches of a row, without the empty columns."""
        columns: I64 = self.rows[row]
        return columns[columns >= 0]

    def digest(self) -> str:
        """Digest of all arrays."""
        return digests.digest_arrays(
            uid=self.uid,
            copy=self.copy,
            bucket=self.bucket,
            real=self.real,
            offsets=self.offsets,
            rows=self.rows,
        )

    def row_digest(self, row: int) -> str:
        """Digest of a row's uids and copies in order; of nothing past the last row."""
        places = (
            np.concatenate([np.r_[self.places(int(m))] for m in self.micro_batches(row)])
            if row < self.steps
            else np.zeros(0, dtype=np.int64)
        )
        return digests.digest_arrays(uid=self.uid[places], copy=self.copy[places])

    def places_before(self, row: int) -> NDArray[np.bool_]:
        """Mask of the real places in the rows before `row`."""
        done = np.zeros(len(self.offsets) - 1, dtype=np.bool_)
        before = self.rows[:row].ravel()
        done[before[before >= 0]] = True
        return np.repeat(done, np.diff(self.offsets)) & self.real

    def costs_us(self, spec: PlanSpec) -> I64:
        """Cost of every micro-batch; a copy that pads costs what a clip costs."""
        costs = np.array(spec.costs_us, dtype=np.int64)
        return np.diff(self.offsets) * costs[self.bucket[self.offsets[:-1]]]


def plan(entries: Entries, spec: PlanSpec, epoch: int) -> EpochPlan:
    """Plan an epoch over the entries (those not yet consumed, if the epoch goes on).

    Args:
        entries: In any order; the plan does not depend on it.
        spec: Everything else that shapes the plan.
        epoch: Number of the epoch, from 0.
    """
    key = (entries.bucket.astype(np.uint64) << np.uint64(48)) | (
        draws.hash64(spec.seed, epoch, entries.uid, entries.copy, Purpose.SHUFFLE) >> np.uint64(16)
    )
    # Ties of the 48-bit hash are broken by identity, so the order of the input never matters.
    ordered = entries.take(np.lexsort((entries.copy, entries.uid, key)))
    source, real, offsets = _cut(ordered.bucket, spec)
    bucket = ordered.bucket[source]
    micro_bucket = bucket[offsets[:-1]]
    costs = np.diff(offsets) * np.array(spec.costs_us, dtype=np.int64)[micro_bucket]
    rows = _rows(micro_bucket, costs, spec, epoch)
    return EpochPlan(
        ordered.uid[source], ordered.copy[source], ordered.ordinal[source], bucket, real, offsets, rows
    )


def _cut(bucket: I64, spec: PlanSpec) -> tuple[I64, NDArray[np.bool_], I64]:
    """Cut runs of equal buckets into micro-batches: source of each place, real or not, offsets."""
    starts = np.flatnonzero(np.r_[True, bucket[1:] != bucket[:-1]]) if len(bucket) else np.zeros(0, np.int64)
    counts = np.diff(np.r_[starts, len(bucket)])
    size = np.array(spec.batch_sizes, dtype=np.int64)[bucket[starts]]
    micro_batches = -(-counts // size)
    total = int(micro_batches.sum())
    run = np.repeat(np.arange(len(starts)), micro_batches)
    within = np.arange(total) - np.repeat(np.cumsum(micro_batches) - micro_batches, micro_batches)
    clips = np.minimum(size[run], counts[run] - within * size[run])
    length = size[run] if spec.incomplete_batch == "pad" else clips
    offsets = np.r_[0, np.cumsum(length)].astype(np.int64)
    micro = np.repeat(np.arange(total), length)
    place = np.arange(int(offsets[-1])) - offsets[micro]
    # A padding copy repeats the micro-batch's own clips in turn: same bucket, nothing else to decode.
    source = starts[run[micro]] + within[micro] * size[run[micro]] + place % np.maximum(clips[micro], 1)
    return source.astype(np.int64), place < clips[micro], offsets


def _rows(micro_bucket: I64, costs: I64, spec: PlanSpec, epoch: int) -> I64:
    """Group micro-batches into slots of one bucket, slots into rows, and shuffle the rows."""
    width, per_row = spec.slot_width, spec.micro_batches_per_step // spec.slot_width
    slots = _slots(micro_bucket, costs, width)
    if not len(slots):
        return np.zeros((0, spec.micro_batches_per_step), dtype=np.int64)
    n_rows = -(-len(slots) // per_row)
    # Slots lie bucket by bucket; dealt out like cards, a row gets slots that are n_rows apart.
    grid = np.full((n_rows * per_row, width), -1, dtype=np.int64)
    grid[: len(slots)] = slots
    rows = grid.reshape(per_row, n_rows, width).transpose(1, 0, 2).reshape(n_rows, per_row * width)
    # Real columns first, so that empty ones can be left out for all ranks at once.
    rows = np.take_along_axis(rows, np.argsort(rows < 0, axis=1, kind="stable"), axis=1)
    order = np.argsort(draws.hash64(spec.seed, epoch, np.arange(n_rows), Purpose.STEP_ORDER), kind="stable")
    return np.ascontiguousarray(rows[order])


def _slots(micro_bucket: I64, costs: I64, width: int) -> I64:
    """Slots of `width` micro-batches: those of one bucket, then the left over ones by cost."""
    index = np.arange(len(micro_bucket), dtype=np.int64)
    if width == 1:
        return index[:, None]
    starts = np.flatnonzero(np.r_[True, micro_bucket[1:] != micro_bucket[:-1]]) if len(index) else index
    counts = np.diff(np.r_[starts, len(index)])
    within = index - np.repeat(starts, counts)
    whole = within < np.repeat(counts // width * width, counts)
    left = index[~whole]
    left = left[np.argsort(costs[left], kind="stable")]
    padded = np.full(-(-len(left) // width) * width, -1, dtype=np.int64)
    padded[: len(left)] = left
    return np.concatenate([index[whole].reshape(-1, width), padded.reshape(-1, width)])


def rank_columns(row: I64, rank: int, world: int) -> Iterator[tuple[int, bool]]:
    """Yield `(micro-batch, is filler)` for one rank, the same number for every rank of a row.

    Where a rank has no column of its own, it runs the row's last micro-batch with weight 0, so that
    collectives stay matched.
    """
    columns = row[row >= 0]
    for first in range(0, len(columns), world):
        own = first + rank
        yield (int(columns[own]), False) if own < len(columns) else (int(columns[-1]), True)


def waste(plan: EpochPlan, spec: PlanSpec, world: int) -> float:
    """Planned share of time that ranks wait for the slowest, over the epoch.

    Ranks meet after every column; a rank with a filler counts as waiting.
    """
    if not plan.steps:
        return 0.0
    costs = np.r_[plan.costs_us(spec), 0]
    width = -(-plan.rows.shape[1] // world) * world
    rows = np.full((plan.steps, width), -1, dtype=np.int64)
    rows[:, : plan.rows.shape[1]] = plan.rows
    per_column = costs[rows].reshape(plan.steps, -1, world)
    spent = per_column.max(axis=2).sum()
    return float(1 - per_column.mean(axis=2).sum() / spent) if spent else 0.0
