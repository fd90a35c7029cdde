"""The plan of an epoch: which clips form which micro-batch, which micro-batches form which step.

1. Clips are ordered by (bucket, hash of (seed, epoch, uid, copy)): a full shuffle inside each bucket
   that stays as it is when other clips come or go.
2. Each bucket is cut into micro-batches of its size; the last may be incomplete. It then stays so
   ("partial"), is filled with weight-0 copies ("pad") or with second showings ("repeat"), or its clips go
   to a smaller bucket ("merge").
3. `L` micro-batches of one bucket make a slot, `G / L` slots make a step (a *row*), of different buckets
   where possible. What is left over per bucket is grouped with its likes in cost.
4. Rank `r` of `W` takes the columns `r, r + W, ...` of a row. The global batch is the same for every `W`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelworks.core import digests, hash_rng
from reelworks.core.hash_rng import Purpose
from reelworks.schedule.micro_batches import cut_micro_batches, group_into_steps, merge_into_larger
from reelworks.schedule.order import by_bucket_and_hash

PLANNER_VERSION = 1
I64 = NDArray[np.int64]


@dataclass(frozen=True)
class Entries:
    """Clips that an epoch has to train: one place for each clip and copy.

    Attributes:
        uid: Identity of the clip.
        copy: Which repeat, from 0.
        ordinal: The clip's row in the catalog.
        bucket: Index into the bucket table.
        group: With locality, a hash of what the clip is stored with; clips of a group are read together.
    """

    uid: NDArray[np.uint64]
    copy: I64
    ordinal: I64
    bucket: I64
    group: NDArray[np.uint64] | None = None

    def take(self, where: NDArray[np.bool_] | I64) -> Entries:
        """Entries at the given places."""
        group = None if self.group is None else self.group[where]
        return Entries(self.uid[where], self.copy[where], self.ordinal[where], self.bucket[where], group)

    def __len__(self) -> int:
        return len(self.uid)


@dataclass(frozen=True)
class PlanSpec:
    """All that shapes a plan besides the entries.

    Attributes:
        seed: The recipe's seed.
        micro_batches_per_step: `G`.
        same_bucket_run: `L`, a divisor of `G`.
        incomplete_batch: "partial", "pad", "merge" or "repeat".
        batch_sizes: Per bucket.
        costs_us: Whole microseconds that one clip of each bucket takes.
        buckets_digest: Digest of the table, since equal numbers may mean other shapes.
        merge_to: With "merge", for each bucket the one of a higher index that takes its clips, or -1.
        window_clips: With locality, about how many clips are shuffled together; 0 shuffles all.
        planner_version: Changes whenever the same arguments would give another plan.
    """

    seed: int
    micro_batches_per_step: int
    same_bucket_run: int
    incomplete_batch: str
    batch_sizes: tuple[int, ...]
    costs_us: tuple[int, ...]
    buckets_digest: str
    merge_to: tuple[int, ...] = ()
    window_clips: int = 0
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
        showing: 0 where a clip is shown, n where it is shown for the nth time more to fill its micro-batch,
            -1 where a weight-0 copy pads it.
        offsets: Starts of the micro-batches in the places, with the total at the end.
        rows: `[steps, G]` micro-batch indices, -1 where a row has none; real ones come first.
    """

    uid: NDArray[np.uint64]
    copy: I64
    ordinal: I64
    bucket: I64
    showing: NDArray[np.int32]
    offsets: I64
    rows: I64

    @property
    def steps(self) -> int:
        """Optimizer steps of the plan."""
        return len(self.rows)

    @property
    def real(self) -> NDArray[np.bool_]:
        """True for the places that count in the loss."""
        real: NDArray[np.bool_] = self.showing >= 0
        return real

    @property
    def first(self) -> NDArray[np.bool_]:
        """True for the places that consume their clip: its only showing, or the first one."""
        first: NDArray[np.bool_] = self.showing == 0
        return first

    @property
    def planned(self) -> int:
        """Clips that the plan trains, each counted once."""
        return int(self.first.sum())

    @property
    def repeated(self) -> int:
        """Second and later showings that fill micro-batches."""
        return int((self.showing > 0).sum())

    def places(self, micro_batch: int) -> slice:
        """Places of a micro-batch."""
        return slice(int(self.offsets[micro_batch]), int(self.offsets[micro_batch + 1]))

    def micro_batches(self, row: int) -> I64:
        """Micro-batches of a row, without the empty columns."""
        columns: I64 = self.rows[row]
        return columns[columns >= 0]

    def counted(self, places: NDArray[np.bool_]) -> I64:
        """How many of the places that a mask names each micro-batch has."""
        before = np.concatenate([[0], np.cumsum(places)]).astype(np.int64)
        return np.diff(before[self.offsets])

    def own_clips(self) -> I64:
        """How many clips each micro-batch has that are not there to fill it."""
        return self.counted(self.first)

    def planned_in(self, row: int) -> int:
        """Clips that a row trains, each counted once."""
        return sum(int((self.showing[self.places(int(m))] == 0).sum()) for m in self.micro_batches(row))

    def digest(self) -> str:
        """Digest of all arrays but the ordinals, which tell where a catalog has the clips."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        return digests.digest_arrays(**{k: a for k, a in self.arrays().items() if k != "ordinal"})

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All arrays by name, as files keep them."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def row_digest(self, row: int) -> str:
        """Digest of a row's uids, copies and showings in order; of nothing past the last row."""
        places = (
            np.concatenate([np.r_[self.places(int(m))] for m in self.micro_batches(row)])
            if row < self.steps
            else np.zeros(0, dtype=np.int64)
        )
        return digests.digest_arrays(
            uid=self.uid[places], copy=self.copy[places], showing=self.showing[places]
        )

    def places_before(self, row: int) -> NDArray[np.bool_]:
        """Mask of the places in the rows before `row` that consume their clip."""
        done = np.zeros(len(self.offsets) - 1, dtype=np.bool_)
        before = self.rows[:row].ravel()
        done[before[before >= 0]] = True
        return np.repeat(done, np.diff(self.offsets)) & self.first

    def costs_us(self, spec: PlanSpec) -> I64:
        """Cost of every micro-batch; what fills it costs what a clip costs."""
        costs = np.array(spec.costs_us, dtype=np.int64)
        return np.diff(self.offsets) * costs[self.bucket[self.offsets[:-1]]]


def plan_epoch(entries: Entries, spec: PlanSpec, epoch: int) -> EpochPlan:
    """Plan an epoch over the entries (those not yet consumed, if the epoch goes on).

    Args:
        entries: In any order; the plan does not depend on it.
        spec: Everything else that shapes the plan.
        epoch: Number of the epoch, from 0.
    """
    windows = _windows(entries, spec, epoch)
    order = by_bucket_and_hash(
        entries.uid,
        entries.copy,
        # Within a bucket, window after window.
        entries.bucket if windows is None else entries.bucket * (windows.max(initial=0) + 1) + windows,
        seed=spec.seed,
        epoch=epoch,
    )
    bucket = entries.bucket[order]
    if spec.incomplete_batch == "merge":
        moved, bucket = merge_into_larger(bucket, spec.batch_sizes, spec.merge_to)
        order = order[moved]
    cuts = cut_micro_batches(bucket, spec.batch_sizes, whole=spec.incomplete_batch in ("pad", "repeat"))
    fill = cuts.fill(repeat=spec.incomplete_batch == "repeat")
    if len(fill.source) > len(order):
        order, bucket = order[fill.source], bucket[fill.source]
    costs = cuts.length * np.array(spec.costs_us, dtype=np.int64)[cuts.bucket]
    rows = group_into_steps(
        cuts.bucket,
        costs,
        micro_batches_per_step=spec.micro_batches_per_step,
        same_bucket_run=spec.same_bucket_run,
        seed=spec.seed,
        epoch=epoch,
        window=None if windows is None else windows[order[cuts.offsets[:-1]]],
    )
    return EpochPlan(
        uid=entries.uid[order],
        copy=entries.copy[order],
        ordinal=entries.ordinal[order],
        bucket=bucket,
        showing=fill.showing,
        offsets=cuts.offsets,
        rows=rows,
    )


def _windows(entries: Entries, spec: PlanSpec, epoch: int) -> I64 | None:
    """Window of each clip: each group is thrown into one by hash, whatever other groups there are."""
    if not spec.window_clips:
        return None
    assert entries.group is not None
    count = max(round(len(entries) / spec.window_clips), 1)
    return hash_rng.below(hash_rng.hash64(spec.seed, epoch, entries.group, Purpose.WINDOW), count)


def draw_copies(copy: I64, showing: NDArray[np.int32]) -> I64:
    """Return numbers that tell the draws about copies of a clip apart, and those about showings of a copy.

    A copy that pads meets what the clip itself does.
    """
    drawn: I64 = copy | (np.maximum(showing, 0).astype(np.int64) << 32)
    return drawn
