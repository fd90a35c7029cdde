"""The place of training in the data, and the clips that are consumed; resume is arithmetic on these.

A cursor names a catalog state, a spec and a plan by digest, and a row in it. Consumed are the clips of
the rows before it and those that `excluded` names from earlier segments of the epoch.
"""

from __future__ import annotations

import io
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelworks.core import digests
from reelworks.core.errors import UserError
from reelworks.schedule.plan import Entries, EpochPlan

# Clips looked up together, so that a block's own sorting stays cheap.
_BLOCK = 1 << 18
# A uid is a hash: most clips that are not consumed show it by their first bits.
_PREFIX_BITS = 24
_PREFIX_SHIFT = np.uint64(64 - _PREFIX_BITS)


@dataclass(frozen=True)
class Cursor:
    """Position in the data of a run.

    Attributes:
        catalog: Digest of the catalog's live rows.
        catalog_version: Parts that the catalog had.
        spec: Digest of the plan's spec.
        plan: Digest of the plan.
        next_row: Digest of the uids of the row to train next.
        generation: Times that the data were restarted from scratch.
        epoch: From 0.
        segment: Stretch of the epoch under one plan, from 0.
        row: Row to train next; equal to the plan's steps at an epoch's end.
        global_step: Optimizer steps done in the run.
        planned: Clips planned in the epoch so far, all segments.
        trained, failed, skipped: What became of the clips consumed in the epoch.
        repeated: Second and later showings in the epoch; they consume nothing.
    """

    catalog: str
    catalog_version: int
    spec: str
    plan: str
    next_row: str
    generation: int
    epoch: int
    segment: int
    row: int
    global_step: int
    planned: int
    trained: int
    failed: int
    skipped: int
    repeated: int

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def _no_uids() -> NDArray[np.uint64]:
    return np.zeros(0, dtype=np.uint64)


def _no_numbers() -> NDArray[np.int64]:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Excluded:
    """Clips consumed in earlier segments of the epoch.

    Attributes:
        bits: Bitmap over (ordinal, copy) of the catalog that the present segment is planned on.
        gone_key, gone_copy: Those that this catalog has no live row of; they may come back.
    """

    bits: NDArray[np.bool_]
    gone_key: NDArray[np.uint64] = field(default_factory=_no_uids)
    gone_copy: NDArray[np.int64] = field(default_factory=_no_numbers)

    @classmethod
    def none(cls) -> Excluded:
        """Nothing is consumed: a first segment."""
        return cls(np.zeros((0, 1), dtype=np.bool_))

    def __bool__(self) -> bool:
        return bool(self.bits.any()) or bool(len(self.gone_key))

    def with_places(self, ordinal: NDArray[np.int64], copy: NDArray[np.int64]) -> Excluded:
        """Add consumed places."""
        if not len(ordinal):
            return self
        rows = max(len(self.bits), int(ordinal.max()) + 1)
        copies = max(self.bits.shape[1], int(copy.max()) + 1)
        bits = np.zeros((rows, copies), dtype=np.bool_)
        bits[: len(self.bits), : self.bits.shape[1]] = self.bits
        bits[ordinal, copy] = True
        return replace(self, bits=bits)

    def places(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Ordinals and copies that are consumed."""
        ordinal, copy = np.nonzero(self.bits)
        return ordinal.astype(np.int64), copy.astype(np.int64)

    def holds(self, ordinal: NDArray[np.int64], copy: NDArray[np.int64]) -> NDArray[np.bool_]:
        """True for the places that are consumed."""
        rows, copies = self.bits.shape
        held = np.zeros(len(ordinal), dtype=np.bool_)
        known = np.flatnonzero((ordinal < rows) & (copy < copies))
        held[known] = self.bits[ordinal[known], copy[known]]
        return held

    def digest(self) -> str:
        """Digest of the places consumed."""
        return digests.digest_arrays(bits=np.packbits(self.bits), shape=np.array(self.bits.shape))

    def to_bytes(self) -> bytes:
        """Pack: a small header, a bit for each (ordinal, copy), and the clips that are gone."""
        buffer = io.BytesIO()
        np.savez(
            buffer,
            shape=np.array(self.bits.shape),
            bits=np.packbits(self.bits),
            gone_key=self.gone_key,
            gone_copy=self.gone_copy,
        )
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Excluded:
        """Unpack."""
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            shape = tuple(int(n) for n in arrays["shape"])
            bits = np.unpackbits(arrays["bits"], count=int(np.prod(shape))).reshape(shape)
            return cls(bits.astype(np.bool_), arrays["gone_key"], arrays["gone_copy"])


@dataclass(frozen=True)
class Aliases:
    """Live rows whose clip goes by another key than its uid, because its dataset was renamed, split or swapped.

    A clip's key is the uid under which the run first met its file. Consumption goes by key, so that a file
    under a new name is the clip that it was.

    Attributes:
        ordinal: The rows, ascending.
        key: The key of each.
    """

    ordinal: NDArray[np.int64] = field(default_factory=_no_numbers)
    key: NDArray[np.uint64] = field(default_factory=_no_uids)

    def __bool__(self) -> bool:
        return bool(len(self.ordinal))

    def keys(self, ordinal: NDArray[np.int64], uid: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Keys of rows, given their ordinals and uids."""
        if not len(self.ordinal):
            return uid
        place = np.minimum(np.searchsorted(self.ordinal, ordinal), len(self.ordinal) - 1)
        return np.where(self.ordinal[place] == ordinal, self.key[place], uid)

    def with_more(self, ordinal: NDArray[np.int64], key: NDArray[np.uint64]) -> Aliases:
        """These and others; of a row that both name, the other's key holds."""
        ordinals, last = np.unique(np.concatenate([ordinal, self.ordinal]), return_index=True)
        return Aliases(ordinals, np.concatenate([key, self.key])[last])

    def to_bytes(self) -> bytes:
        """Pack."""
        buffer = io.BytesIO()
        np.savez(buffer, ordinal=self.ordinal, key=self.key)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Aliases:
        """Unpack."""
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return cls(arrays["ordinal"], arrays["key"])


def remaining(
    entries: Entries, consumed_uid: NDArray[np.uint64], consumed_copy: NDArray[np.int64]
) -> Entries:
    """Entries whose (uid, copy) is not consumed; an edited clip keeps its uid and so stays consumed."""
    keep = np.ones(len(entries), dtype=np.bool_)
    for copy in np.flatnonzero(np.bincount(consumed_copy)):
        done = np.sort(consumed_uid[consumed_copy == copy])
        may = np.zeros(1 << _PREFIX_BITS, dtype=np.bool_)
        may[done >> _PREFIX_SHIFT] = True
        for first in range(0, len(entries), _BLOCK):
            where = slice(first, first + _BLOCK)
            likely = np.flatnonzero((entries.copy[where] == copy) & may[entries.uid[where] >> _PREFIX_SHIFT])
            keep[first + likely[_among(entries.uid[first + likely], done)]] = False
    return entries.take(keep)


def remaining_after(entries: Entries, excluded: Excluded, uid: NDArray[np.uint64]) -> Entries:
    """Entries that are not excluded: `remaining`, faster, where ordinals mean the same rows as before.

    Args:
        entries: Of the catalog as it is now.
        excluded: Places consumed.
        uid: Of every row that the catalog ever had, by ordinal.
    """
    rows, copies = excluded.bits.shape
    known = np.flatnonzero((entries.ordinal < rows) & (entries.copy < copies))
    place = entries.ordinal[known] * copies + entries.copy[known]
    done = excluded.bits.reshape(-1)
    keep = np.ones(len(entries), dtype=np.bool_)
    keep[known[done[place]]] = False
    # The others were edited since, which gave them a new row, or have no bucket any more.
    others = done.copy()
    others[place] = False
    elsewhere = np.flatnonzero(others)
    rest = entries.take(keep)
    return remaining(rest, uid[elsewhere // copies], elsewhere % copies) if len(elsewhere) else rest


def _among(uid: NDArray[np.uint64], done: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which uids are among the sorted ones; looked up in their order, so that the search walks forward."""
    order = np.argsort(uid)
    place = np.minimum(np.searchsorted(done, uid[order]), len(done) - 1)
    found = np.empty(len(uid), dtype=np.bool_)
    found[order] = done[place] == uid[order]
    return found


def check_same(cursor: Cursor, plan: EpochPlan) -> None:
    """Refuse to go on where catalog and spec are as before and yet the plan is not.

    Raises:
        UserError: The plan or its next row differs from what the checkpoint says.
    """
    if (plan.digest(), plan.row_digest(cursor.row)) != (cursor.plan, cursor.next_row):
        raise UserError(
            "the plan differs from the checkpoint's although catalog and recipe are unchanged",
            code="plan-differs",
            field="resume",
            value=f"epoch {cursor.epoch}, row {cursor.row}",
            remedy="the checkpoint was written by another planner version; go on with that version, or "
            "train into another folder with --output",
        )
