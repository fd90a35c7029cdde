"""Position of training in the data, and the consumed clips; a resume is computed from these.

A cursor names a catalog state, a spec and a plan by digest, and a step of the plan. Consumed clips are those of
the steps before it and those that `excluded` lists from earlier segments of the epoch.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field, fields, replace

import numpy as np

from reelworks.core import blocks, digests
from reelworks.core.arrays import I64, U64, Mask
from reelworks.core.errors import UserError
from reelworks.data.schedule.plan import EpochPlan, Samples

# Number of clips looked up at a time, so that sorting a block stays cheap.
_BLOCK = 1 << 18
# A uid is a hash: for most clips that are not consumed, the first bits suffice to see that.
_PREFIX_BITS = 24
_PREFIX_SHIFT = np.uint64(64 - _PREFIX_BITS)


@dataclass(frozen=True)
class StageStart:
    """Start of a stage of training; without stages, of the run.

    Attributes:
        name: Name of the stage; empty without stages.
        step, epoch: Its first, from 0.
        clips: Clips that the run had trained before, each use as one.
        average_step: Step since which the weights are averaged; negative for an average of another run that goes on.
        epochs_step: Step with which its first epoch began: its first, or that of the last restart of the data.
        epoch_steps: Steps of that epoch as it was planned then.
    """

    name: str = ""
    step: int = 0
    epoch: int = 0
    clips: int = 0
    average_step: int = 0
    epochs_step: int = 0
    epoch_steps: int = 0


RUN_START = StageStart()


@dataclass(frozen=True)
class Cursor:
    """Position in the data of a run; `catalog`, `spec` and `plan` are digests."""

    catalog: str  # digest of the catalog's live rows
    catalog_version: int  # number of parts of the catalog
    spec: str
    plan: str
    next_step: str  # digest of the uids of the step to train next
    data_restarts: int  # how often the data were restarted from the beginning
    # epoch, segment: indices from 0 of the epoch, and of its part under one plan
    epoch: int
    segment: int
    plan_step: int  # step of the plan to train next; equal to its number of steps at the end of an epoch
    global_step: int  # optimizer steps done in the run
    planned: int  # clips planned in the epoch so far, all segments
    # trained, failed, skipped: clips consumed in the epoch, by outcome
    trained: int
    failed: int
    skipped: int
    repeated: int  # repeats in the epoch that filled micro-batches; they consume nothing
    clips_before: int = 0  # clips trained in the run before the epoch
    # stage_*: the fields of `StageStart`
    stage_name: str = ""
    stage_step: int = 0
    stage_epoch: int = 0
    stage_clips: int = 0
    stage_average_step: int = 0
    stage_epochs_step: int = 0
    stage_epoch_steps: int = 0

    @property
    def stage(self) -> StageStart:
        """Start of the stage."""
        return StageStart(*(getattr(self, f"stage_{each.name}") for each in fields(StageStart)))

    @property
    def clips(self) -> int:
        """Clips that the run has trained, each use as one."""
        return self.clips_before + self.trained

    @property
    def at_end(self) -> bool:
        """Whether all clips of the epoch's plans are consumed."""
        return self.trained + self.failed + self.skipped == self.planned


@dataclass(frozen=True)
class Excluded:
    """Clips consumed in earlier segments of the epoch."""

    # bits: bitmap over (ordinal, copy) of the catalog that the current segment is planned on
    bits: Mask = field(default_factory=lambda: np.zeros((0, 1), dtype=np.bool_))
    # gone_key, gone_copy: consumed clips without a live row in this catalog; they may reappear later
    gone_key: U64 = field(default_factory=lambda: np.zeros(0, np.uint64))
    gone_copy: I64 = field(default_factory=lambda: np.zeros(0, np.int64))

    def __bool__(self) -> bool:
        return bool(self.bits.any()) or bool(len(self.gone_key))

    def with_places(self, ordinal: I64, copy: I64) -> Excluded:
        """Return these exclusions plus the given (ordinal, copy) pairs."""
        rows, copies = self.bits.shape
        more_rows = max(int(ordinal.max(initial=-1)) + 1 - rows, 0)
        more_copies = max(int(copy.max(initial=-1)) + 1 - copies, 0)
        bits = np.pad(self.bits, ((0, more_rows), (0, more_copies)))
        bits[ordinal, copy] = True
        return replace(self, bits=bits)

    def places(self) -> tuple[I64, I64]:
        """Return the ordinals and copies of the consumed clips."""
        ordinal, copy = np.nonzero(self.bits)
        return ordinal.astype(np.int64), copy.astype(np.int64)

    def holds(self, ordinal: I64, copy: I64) -> Mask:
        """Return True for each (ordinal, copy) that is consumed."""
        rows, copies = self.bits.shape
        held = np.zeros(len(ordinal), dtype=np.bool_)
        known = np.flatnonzero((ordinal < rows) & (copy < copies))
        held[known] = self.bits[ordinal[known], copy[known]]
        return held

    def digest(self) -> str:
        """Return the digest of the bitmap."""
        return digests.digest_arrays(bits=np.packbits(self.bits), shape=np.array(self.bits.shape))

    def to_bytes(self) -> bytes:
        """Serialise as a small header, one bit per (ordinal, copy), and the clips without a live row."""
        buffer = io.BytesIO()
        shape, bits = np.array(self.bits.shape), np.packbits(self.bits)
        np.savez(buffer, shape=shape, bits=bits, gone_key=self.gone_key, gone_copy=self.gone_copy)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Excluded:
        """Read the output of `to_bytes`."""
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            shape = tuple(int(n) for n in arrays["shape"])
            bits = np.unpackbits(arrays["bits"], count=int(np.prod(shape))).reshape(shape)
            return cls(bits.astype(np.bool_), arrays["gone_key"], arrays["gone_copy"])


@dataclass(frozen=True)
class Aliases:
    """Live rows whose clip has another key than its uid, because its dataset was renamed, split or swapped.

    A clip's key is the uid under which the run first saw its file. Consumed clips are identified by key, so that
    a file under a new name remains the same clip.
    """

    ordinal: I64 = field(default_factory=lambda: np.zeros(0, np.int64))  # ordinals of the rows, ascending
    key: U64 = field(default_factory=lambda: np.zeros(0, np.uint64))  # key of each row

    def __bool__(self) -> bool:
        return bool(len(self.ordinal))

    def keys(self, ordinal: I64, uid: U64) -> U64:
        """Return the keys of the rows with these ordinals and uids."""
        if not self:
            return uid
        place = blocks.find(self.ordinal, ordinal)
        return np.where(place >= 0, self.key[place], uid)

    def with_more(self, ordinal: I64, key: U64) -> Aliases:
        """Return these aliases and further ones, which take precedence."""
        ordinals, last = np.unique(np.concatenate([ordinal, self.ordinal]), return_index=True)
        return Aliases(ordinals, np.concatenate([key, self.key])[last])

    def to_bytes(self) -> bytes:
        """Serialise as bytes."""
        buffer = io.BytesIO()
        np.savez(buffer, ordinal=self.ordinal, key=self.key)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Aliases:
        """Read the output of `to_bytes`."""
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return cls(arrays["ordinal"], arrays["key"])


def remaining(entries: Samples, consumed_uid: U64, consumed_copy: I64) -> Samples:
    """Return the entries whose (uid, copy) is not consumed; an edited clip keeps its uid and remains consumed."""
    keep = np.ones(len(entries), dtype=np.bool_)
    for copy in np.flatnonzero(np.bincount(consumed_copy)):
        done = np.sort(consumed_uid[consumed_copy == copy])
        may = blocks.mask(done >> _PREFIX_SHIFT, 1 << _PREFIX_BITS)
        for first in range(0, len(entries), _BLOCK):
            where = slice(first, first + _BLOCK)
            likely = np.flatnonzero((entries.copy[where] == copy) & may[entries.uid[where] >> _PREFIX_SHIFT])
            keep[first + likely[_among(entries.uid[first + likely], done)]] = False
    return entries.take(keep)


def remaining_after(entries: Samples, excluded: Excluded, uid: U64) -> Samples:
    """Return the entries that are not excluded: a faster `remaining` for unchanged ordinals.

    `uid` has the uid of every row that the catalog ever had, by ordinal.
    """
    rows, copies = excluded.bits.shape
    known = np.flatnonzero((entries.ordinal < rows) & (entries.copy < copies))
    place = entries.ordinal[known].astype(np.int64) * copies + entries.copy[known]
    done = excluded.bits.reshape(-1)
    keep = np.ones(len(entries), dtype=np.bool_)
    keep[known[done[place]]] = False
    # The other clips were edited, which gave them a new row, or no longer have a bucket.
    others = done.copy()
    others[place] = False
    elsewhere = np.flatnonzero(others)
    rest = entries.take(keep)
    return remaining(rest, uid[elsewhere // copies], elsewhere % copies) if len(elsewhere) else rest


def _among(uid: U64, done: U64) -> Mask:
    """Return which uids are in the sorted array; looked up in sorted order, so that the search moves forward."""
    order = np.argsort(uid)
    among = np.empty(len(uid), dtype=np.bool_)
    among[order] = blocks.find(done, uid[order]) >= 0
    return among


def check_same(cursor: Cursor, plan: EpochPlan) -> None:
    """Refuse to resume if the plan or its next step changed although catalog and spec did not."""
    if (plan.digest(), plan.step_digest(cursor.plan_step)) != (cursor.plan, cursor.next_step):
        raise UserError(
            "the plan differs from the checkpoint's although catalog and recipe are unchanged",
            code="plan-differs",
            field="resume",
            value=f"epoch {cursor.epoch}, plan step {cursor.plan_step}",
            remedy="another version of the planner made it: resume with that one, or train into another folder with --output",
        )
