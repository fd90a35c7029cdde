"""The plan of an epoch: which clips form which micro-batch, and which micro-batches form which step.

1. Clips are ordered by (bucket, hash of (seed, epoch, uid, copy)): a full shuffle within each bucket, in which
   the order of two clips does not depend on the other clips.
2. Each bucket is cut into micro-batches of its batch size. An incomplete last one stays incomplete ("partial"),
   is filled with weight-0 copies ("pad") or repeated clips ("repeat"), or its clips move to a smaller bucket
   ("merge").
3. `L` micro-batches of one bucket form a slot, `G / L` slots form a step, of different buckets if
   possible. Left-over micro-batches of all buckets are grouped with others of similar cost.
4. Rank `r` of `W` takes the columns `r, r + W, ...` of a step. The global batch is the same for every `W`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelworks.core import blocks, digests, hash_rng
from reelworks.core.arrays import I64, U64, Integers, Mask
from reelworks.core.digests import ArrayParts
from reelworks.core.hash_rng import Purpose
from reelworks.data.schedule.micro_batches import cut_micro_batches, group_into_steps, merge_into_larger

PLANNER_VERSION = 1

# Number of clips hashed at a time; small enough that intermediate results stay in the processor's cache.
_BLOCK = 1 << 15


@dataclass(frozen=True)
class Samples:
    """Clips that an epoch trains: one element for each clip and repeat."""

    uid: U64
    copy: Integers  # index of the repeat, from 0
    ordinal: Integers  # row of the clip in the catalog
    bucket: Integers  # index into the bucket table
    # group: with locality, a hash of the storage unit of the clip; clips of a group are read together
    group: U64 | None = None
    # layout: a small number for the number and sizes of the clip's sources, which are the same in a micro-batch
    layout: I64 | None = None
    may_merge: Mask | None = None  # whether "merge" may move the clip to another bucket; None for all

    def take(self, where: Mask | I64) -> Samples:
        """Return the entries at these indices or under this mask."""
        columns: dict[str, Any] = {n: None if column is None else column[where] for n, column in vars(self).items()}
        return Samples(**columns)

    def wide(self) -> Samples:
        """Return the entries with integers of 64 bits, which do not overflow when they are calculated with."""
        names = ("copy", "ordinal", "bucket")
        return replace(self, **{name: getattr(self, name).astype(np.int64, copy=False) for name in names})

    def __len__(self) -> int:
        return len(self.uid)


@dataclass(frozen=True)
class PlanSpec:
    """Parameters of a plan, apart from the samples."""

    seed: int
    micro_batches_per_step: int  # micro-batches of an optimizer step on all ranks, `G`
    same_bucket_run: int  # micro-batches of a slot, `L`, a divisor of `G`
    incomplete_batch: str  # "partial", "pad", "merge" or "repeat"
    batch_sizes: tuple[int, ...]
    costs_us: tuple[int, ...]  # cost of one clip of each bucket, an integer, in microseconds or a finer unit
    buckets_digest: str  # digest of the bucket table, since equal indices can mean different shapes
    # merge_to: with "merge", the bucket of a higher index that takes each bucket's left-over clips, or -1
    merge_to: tuple[int, ...] = ()
    window_clips: int = 0  # with locality, the approximate number of clips shuffled together; 0 shuffles all
    planner_version: int = PLANNER_VERSION  # version that changes whenever the same arguments would give another plan
    batch_costs_us: tuple[int, ...] = ()  # what a micro-batch of each bucket costs besides its clips; empty for nothing

    def digest(self) -> str:
        """Return the digest of all fields."""
        merging = {"merging": 2} if self.merge_to else {}  # version of the choice of what may merge
        values = {name: value for name, value in asdict(self).items() if value or name != "batch_costs_us"}
        return digests.digest_json(values | merging)

    def costs(self, bucket: Integers, clips: Integers | np.int64) -> I64:
        """Return the costs of micro-batches of these buckets and numbers of clips, in which copies and repeats count like clips."""
        result: I64 = blocks.taken(np.array(self.costs_us, dtype=np.int64), bucket)
        result *= clips
        if self.batch_costs_us:
            result += blocks.taken(np.array(self.batch_costs_us, dtype=np.int64), bucket)
        return result


@dataclass(frozen=True)
class EpochPlan:
    """Plan of an epoch, or of the rest of one, as arrays."""

    # One element for each place; micro-batch `m` owns the places `offsets[m]:offsets[m + 1]`. Integers other than the uid
    # may be of narrower types, on which the digest does not depend.
    uid: U64
    copy: Integers
    ordinal: Integers
    bucket: Integers
    # repeat_index: 0 for the first use of a clip, n for its nth repeat that fills a micro-batch, -1 for a weight-0 padding copy
    repeat_index: Integers
    offsets: I64  # first place of each micro-batch, with the total number of places at the end
    steps: Integers  # `[num_steps, G]` micro-batch indices; empty columns are -1 and come last

    @property
    def num_steps(self) -> int:
        """Number of optimizer steps of the plan."""
        return len(self.steps)

    @property
    def real(self) -> Mask:
        """Mask of the places that count in the loss."""
        return self.repeat_index >= 0

    @property
    def is_first_use(self) -> Mask:
        """Mask of the places that consume their clip, which is its first use."""
        return np.asarray(self.repeat_index == 0)

    @property
    def planned(self) -> int:
        """Number of clips that the plan trains, each counted once."""
        return int(self.is_first_use.sum())

    @property
    def repeated(self) -> int:
        """Number of repeats that fill micro-batches."""
        return int((self.repeat_index > 0).sum())

    def places(self, micro_batch: int) -> slice:
        """Return the places of a micro-batch."""
        return slice(int(self.offsets[micro_batch]), int(self.offsets[micro_batch + 1]))

    def micro_batches(self, plan_step: int) -> Integers:
        """Return the micro-batches of a step, without empty columns."""
        columns: Integers = self.steps[plan_step]
        return columns[columns >= 0]

    @cached_property
    def real_clips(self) -> Integers:
        """Number of clips of each micro-batch that count in the loss."""
        return self._counted(self.real)

    @cached_property
    def own_clips(self) -> Integers:
        """Number of clips of each micro-batch, without copies and repeats that fill it."""
        return self._counted(self.is_first_use)

    def _counted(self, places: Mask) -> Integers:
        # No micro-batch is empty, so each has a sum of its own.
        return np.add.reduceat(places, self.offsets[:-1], dtype=np.int32)

    @cached_property
    def planned_before(self) -> I64:
        """Number of clips, each counted once, that are trained before each step and, as the last element, by the whole plan."""
        each = np.append(self.own_clips, 0)[self.steps].sum(axis=1, dtype=np.int64)  # -1, an empty column, is the 0
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(each)])

    def planned_in(self, plan_step: int) -> int:
        """Return the number of clips that a step trains, each counted once."""
        return sum(int((self.repeat_index[self.places(int(m))] == 0).sum()) for m in self.micro_batches(plan_step))

    def sizes_in(self, plan_step: int) -> list[int]:
        """Return the places of each micro-batch of a step."""
        return [(at := self.places(int(m))).stop - at.start for m in self.micro_batches(plan_step)]

    def real_in(self, plan_step: int) -> list[int]:
        """Return the number of clips that count in the loss, of each micro-batch of a step."""
        return [int((self.repeat_index[self.places(int(m))] >= 0).sum()) for m in self.micro_batches(plan_step)]

    @cached_property
    def micro_bucket(self) -> Integers:
        """Bucket of each micro-batch."""
        return self.bucket[self.offsets[:-1]]

    def digest(self) -> str:
        """Return the digest of all arrays except the ordinals, which depend on the catalog."""
        return self._digest

    def with_digest(self, digest: str) -> EpochPlan:
        """Return the plan, whose digest is known to be this one, so that it is not computed again."""
        vars(self)["_digest"] = digest
        return self

    @cached_property
    def _digest(self) -> str:
        arrays = {name: array for name, array in self.arrays().items() if name != "ordinal"}
        # Their former names and types keep digests valid.
        arrays |= {"showing": arrays.pop("repeat_index"), "rows": arrays.pop("steps")}
        types = {"uid": np.uint64, "showing": np.int32}
        return digests.digest_parts(
            {name: ArrayParts.from_array(array, types.get(name, np.int64)) for name, array in arrays.items()}
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all arrays by name, as they are saved to files."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def step_digest(self, plan_step: int) -> str:
        """Return the digest of a step's uids, copies and repeats in order; of empty arrays past the last step."""
        micro_batches = self.micro_batches(plan_step).tolist() if plan_step < self.num_steps else []
        places = np.concatenate([np.zeros(0, np.int64), *(np.r_[self.places(m)] for m in micro_batches)])
        copy = self.copy[places].astype(np.int64)
        showing = self.repeat_index[places].astype(np.int32)
        return digests.digest_arrays(uid=self.uid[places], copy=copy, showing=showing)

    def costs_us(self, spec: PlanSpec) -> I64:
        """Return the cost of every micro-batch, in which copies and repeats count like clips."""
        return spec.costs(self.micro_bucket, np.diff(self.offsets))

    def waste(self, spec: PlanSpec, world: int) -> float:
        """Return the planned share of the time of `world` ranks in which they wait for the slowest one.

        Ranks synchronise after every micro-batch; a rank with a filler counts as waiting.
        """
        if not self.num_steps:
            return 0.0
        costs, spent = np.append(self.costs_us(spec), 0), 0
        for where in blocks.slices(self.num_steps):
            steps = np.pad(self.steps[where], ((0, 0), (0, -self.steps.shape[1] % world)), constant_values=-1)
            spent += int(costs[steps].reshape(len(steps), -1, world).max(axis=2).sum())
        return 1 - int(costs.sum()) / (world * spent) if spent else 0.0


def columns(step: Integers, rank: int, world: int) -> Iterator[tuple[int, bool]]:
    """Yield `(micro-batch, is filler)` of a plan's step for one rank, equally many for each rank.

    A rank without a column of its own runs the step's last micro-batch with weight 0, so that all ranks take part
    in the same collectives.
    """
    taken = step[step >= 0]
    for own in range(rank, rank + len(taken), world):
        yield (int(taken[own]), False) if own < len(taken) else (int(taken[-1]), True)


@dataclass(frozen=True)
class ForwardCounts:
    """Numbers of clips that all ranks compute at the same time with a network that takes a pass for each.

    Ranks exchange weights and gradients in each pass, and would wait for each other for ever if one had fewer.

    Attributes:
        columns: The most clips that a rank has in each column of the step; empty if it does not matter.
        ranks: Number of ranks, which have a micro-batch each of a column.
    """

    columns: tuple[int, ...]
    ranks: int

    @classmethod
    def from_step(cls, plan: EpochPlan, plan_step: int, ranks: int, parts: I64) -> ForwardCounts:
        """Return those of a step of the plan; `parts` are those of a column of each bucket."""
        sizes = -(-np.diff(plan.offsets) // parts[plan.bucket[plan.offsets[:-1]]])
        by_rank = [[int(sizes[i]) for i, _ in columns(plan.steps[plan_step], rank, ranks)] for rank in range(ranks)]
        return cls(tuple(map(max, zip(*by_rank, strict=True))), ranks)

    @property
    def most(self) -> int:
        """Clips of the largest column; 0 if it does not matter."""
        return max(self.columns, default=0)

    def min_batch_size(self, index: int) -> int:
        """Return how many clips to compute at least with a micro-batch of the step; 0 if it does not matter."""
        return self.columns[index // self.ranks] if self.columns else 0


def plan_epoch(entries: Samples, spec: PlanSpec, epoch: int) -> EpochPlan:
    """Plan an epoch over its entries, or over those not yet consumed if the epoch has begun.

    The plan does not depend on the order of the entries. Clips of one bucket and different layouts are planned as if
    they were of different buckets.
    """
    if entries.layout is not None:
        return _plan_layouts(entries, spec, epoch)
    windows = _windows(entries, spec, epoch)
    order = by_bucket_and_hash(
        entries.uid,
        entries.copy,
        # Within a bucket, clips are sorted by window.
        entries.bucket if windows is None else _by_window(entries.bucket, windows),
        seed=spec.seed,
        epoch=epoch,
    )
    counts = blocks.counts(entries.bucket, len(spec.batch_sizes))
    bucket = np.repeat(blocks.narrow(np.arange(len(counts))), counts)
    if spec.incomplete_batch == "merge":
        may_merge = None if entries.may_merge is None else entries.may_merge[order]
        moved, bucket = merge_into_larger(bucket, spec.batch_sizes, spec.merge_to, may_merge)
        order = order[moved]
    cuts = cut_micro_batches(bucket, spec.batch_sizes, whole=spec.incomplete_batch in ("pad", "repeat"))
    source, repeat_index = cuts.fill(repeat=spec.incomplete_batch == "repeat")
    if source is not None:
        order, bucket = blocks.taken(order, source), blocks.taken(bucket, source)
    steps = group_into_steps(
        cuts.bucket,
        spec.costs(cuts.bucket, cuts.length),
        micro_batches_per_step=spec.micro_batches_per_step,
        same_bucket_run=spec.same_bucket_run,
        seed=spec.seed,
        epoch=epoch,
        window=None if windows is None else windows[order[cuts.offsets[:-1]]],
    )
    return EpochPlan(
        uid=blocks.taken(entries.uid, order),
        copy=blocks.taken(blocks.narrow(entries.copy), order),
        ordinal=blocks.taken(blocks.narrow(entries.ordinal), order),
        bucket=blocks.narrow(bucket),
        repeat_index=blocks.narrow(repeat_index),
        offsets=cuts.offsets,
        steps=steps,
    )


def _plan_layouts(entries: Samples, spec: PlanSpec, epoch: int) -> EpochPlan:
    assert entries.layout is not None
    count = int(entries.layout.max(initial=0)) + 1
    of_layouts = replace(entries, bucket=entries.bucket.astype(np.int64) * count + entries.layout, layout=None)
    merge_to = tuple(to * count + n if to >= 0 else -1 for to in spec.merge_to for n in range(count))
    by_bucket = spec.batch_sizes, spec.costs_us, spec.batch_costs_us
    sizes, costs, besides = (tuple(v for v in values for _ in range(count)) for values in by_bucket)
    spec = replace(spec, batch_sizes=sizes, costs_us=costs, batch_costs_us=besides, merge_to=merge_to)
    plan = plan_epoch(of_layouts, spec, epoch)
    return replace(plan, bucket=plan.bucket // count)


def by_bucket_and_hash(uid: U64, copy: Integers, bucket: Integers, *, seed: int, epoch: int) -> I64:
    """Return the indices of the clips in the order of `(bucket, upper 48 bits of the hash, uid, copy)`.

    One 64-bit word holds the bucket, as many bits of the hash as fit, and the index; sorting these words as
    values is about twice as fast as an argsort. The few neighbours that differ in the index alone are sorted by
    the complete key afterwards, so the order of the input never matters.
    """
    place_bits = _bits(len(uid))
    hash_bits = min(64 - place_bits - _bits(int(bucket.max(initial=0)) + 1), 48)
    words = np.empty(len(uid), dtype=np.uint64)

    def fill(where: slice) -> None:
        hashed = hash_rng.hash64(seed, epoch, uid[where], copy[where], Purpose.SHUFFLE)
        key = (bucket[where].astype(np.uint64) << np.uint64(hash_bits)) | (hashed >> np.uint64(64 - hash_bits))
        words[where] = (key << np.uint64(place_bits)) | np.arange(where.start, where.stop, dtype=np.uint64)

    blocks.for_each(len(uid), fill)
    words.sort()
    tied = _tied(words, np.uint64(place_bits))
    words &= np.uint64((1 << place_bits) - 1)
    order = words.view(np.int64)
    _settle(order, tied, uid, copy, bucket, seed, epoch)
    return order


def _bits(values: int) -> int:
    """Return the bits that `values` distinct values need; at least one, since a shift by 64 bits is undefined."""
    return max((values - 1).bit_length(), 1)


def _tied(words: U64, place_bits: np.uint64) -> I64:
    """Return the positions of sorted words that differ from a neighbour in the place alone."""
    tied = np.zeros(len(words), dtype=np.bool_)
    for first in range(0, len(words) - 1, _BLOCK):
        block = words[first : first + _BLOCK + 1] >> place_bits
        same = block[1:] == block[:-1]
        tied[first : first + len(same)] |= same
        tied[first + 1 : first + 1 + len(same)] |= same
    return np.flatnonzero(tied)


def _settle(order: I64, tied: I64, uid: U64, copy: Integers, bucket: Integers, seed: int, epoch: int) -> None:
    """Sort tied words by the complete key; each group keeps its positions, since bucket and hash begin alike."""
    at = order[tied]
    hashed = hash_rng.hash64(seed, epoch, uid[at], copy[at], Purpose.SHUFFLE) >> np.uint64(16)
    order[tied] = at[np.lexsort((copy[at], uid[at], hashed, bucket[at]))]


def _windows(entries: Samples, spec: PlanSpec, epoch: int) -> Integers | None:
    """Return the window of each clip, chosen by a hash of its group alone."""
    if not spec.window_clips:
        return None
    assert entries.group is not None
    count = max(round(len(entries) / spec.window_clips), 1)

    def drawn(group: U64) -> I64:
        return hash_rng.below(hash_rng.hash64(spec.seed, epoch, group, Purpose.WINDOW), count)

    return blocks.elementwise(drawn, entries.group, dtype=blocks.kind_of(count))


def _by_window(bucket: Integers, window: Integers) -> Integers:
    """Return numbers that are ordered by bucket and then by window."""
    count = int(window.max(initial=0)) + 1
    kind = blocks.kind_of((int(bucket.max(initial=0)) + 1) * count)
    return blocks.elementwise(lambda b, w: b.astype(np.int64) * count + w, bucket, window, dtype=kind)


def draw_copies(copy: Integers, repeat_index: Integers) -> I64:
    """Return the copy number for random draws, distinct for each copy and each repeat of a clip.

    A padding copy has the number of the clip that it copies.
    """
    return np.asarray(copy | (np.maximum(repeat_index, 0).astype(np.int64) << 32))
