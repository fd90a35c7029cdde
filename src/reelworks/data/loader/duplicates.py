"""Let near-duplicates count once: choose the clip of each group that an epoch uses.

The groups are those of the catalog's columns `duplicate_group`, which is equal for near-duplicates and missing for a clip
that has none, and `duplicate_rank`, which is 0 for the best of a group. Only clips that fit a bucket take part, so that
one that is filtered, excluded or too small never stands for another. Datasets with the same `dataset.duplicates`
share their groups, except that the numbers of a list say nothing about clips of other datasets.

- "best": the clip of the least rank is used, and the others are left out of every epoch.
- "weight": each epoch trains one clip of a group, in an order that is drawn from the seed, so that as many epochs as
  the group has clips train each of them once.

A group is held out as a whole, see `held_out`; validation then uses its best clip alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from reelworks.core import blocks
from reelworks.core.arrays import I64, U64, Mask
from reelworks.core.hash_rng import Purpose, hash64, text_words
from reelworks.data.buckets.assign import Assignment, Clips, Reason
from reelworks.data.catalog.config import DatasetConfig
from reelworks.data.catalog.store.rows import CatalogRows
from reelworks.data.catalog.store.store import Catalog

GROUP, RANK = "duplicate_group", "duplicate_rank"
_FITTING = np.isin(np.arange(1 << 7), (Reason.NONE, Reason.NOT_DRAWN, Reason.HELD_OUT))  # by reason


@dataclass(frozen=True)
class Groups:
    """Rows that have near-duplicates, those of a group next to one another and the best first.

    Attributes:
        group: Number of the group of each row, ascending.
        in_turn: Whether the clips of its group are trained in turn.
    """

    row: I64
    group: I64
    in_turn: Mask

    def take(self, where: Mask | I64) -> Groups:
        """Return some of the rows."""
        return Groups(self.row[where], self.group[where], self.in_turn[where])

    @property
    def first(self) -> I64:
        """Index of the first row of the group of each row."""
        begins = np.diff(self.group, prepend=-1) != 0
        return np.maximum.accumulate(np.where(begins, np.arange(len(self.row)), 0))


def numbering_lists(catalog: Catalog) -> frozenset[str]:
    """Return the datasets whose lists number their groups; none if there is one and no other dataset has groups.

    The numbers of that one are its keys of `held_out` as they are, so that runs keep the clips that they hold out.
    """
    lists, rows = catalog.lists_with(GROUP), catalog.live()
    others = np.isfinite(rows.score(GROUP)) & ~rows.of_datasets(lists) if len(lists) == 1 else np.ones(1)
    return lists if others.any() else frozenset()


def numbers(rows: CatalogRows, own: Collection[str]) -> tuple[I64, U64]:
    """Return the rows that are in a group, and a number for the group of each, which only those of a group share.

    Args:
        own: The `numbering_lists`. Each counts as it likes, so that their numbers are told apart from one another's and from
            measured ones, which stay in their order.
    """
    value = rows.score(GROUP)
    row = np.flatnonzero(np.isfinite(value))
    number = (value[row] + 0.0).view(np.uint64)  # of which -0 is 0
    of_list = rows.per_dataset(dict(zip(own, text_words(own), strict=True)), default=0, dtype=np.uint64)[row]
    return row, np.where(of_list, hash64(of_list, number), number)


def groups(rows: CatalogRows, datasets: Sequence[DatasetConfig], own: Collection[str]) -> Groups | None:
    """Return the groups of near-duplicates that count once, see `numbers`; None if there are none."""
    named = {mode: [d.dataset_name for d in datasets if d.duplicates == mode] for mode in ("best", "weight")}
    if not any(named.values()):
        return None
    in_turn = rows.of_datasets(named["weight"])
    row, number = numbers(rows, own)
    taken = (in_turn | rows.of_datasets(named["best"]))[row]
    row, number = row[taken], number[taken]
    order = np.lexsort((rows.uid[row], np.nan_to_num(rows.score(RANK)[row], nan=np.inf), number, in_turn[row]))
    row, number = row[order], number[order]
    begins = np.ones(len(row), dtype=np.bool_)
    begins[1:] = (number[1:] != number[:-1]) | (in_turn[row[1:]] != in_turn[row[:-1]])
    every = Groups(row, np.cumsum(begins) - 1, in_turn[row])
    several = every.take(np.bincount(every.group)[every.group] > 1)
    return several if len(several.row) else None


def count_once(
    found: Groups, result: Assignment, row: I64, *, held_out: Mask, uid: U64, used: Mask, seed: int, epoch: int
) -> Assignment:
    """Return an assignment with one clip of each group; the others have a reason, and as `nearest` the row of that one.

    Args:
        result: The assignment of all uses of all clips.
        row: The row of each use.
        held_out: Which uses are reserved for validation.
        uid: Uid of each row.
        used: Which rows the epoch has used already, before data or settings changed.
    """
    fitting = _FITTING[result.reason]
    fits, held = (blocks.mask(row[where], len(uid)) for where in (fitting, held_out))
    taking_part = found.take(fits[found.row] | used[found.row])
    stand = _stand(taking_part, held, uid, used, seed, epoch)
    left = taking_part.take(stand != taking_part.row)
    stand = stand[stand != taking_part.row]
    reason, instead = np.zeros(len(uid), dtype=np.int8), np.full(len(uid), -1, dtype=np.int32)
    waits = left.in_turn & ~held[left.row] & ~held[stand]
    reason[left.row], instead[left.row] = np.where(waits, Reason.DUPLICATE_TURN, Reason.DUPLICATE), stand
    changed = np.flatnonzero(fitting & (reason != Reason.NONE)[row])
    new_reason, nearest = result.reason.copy(), result.nearest.astype(np.int32)
    new_reason[changed], nearest[changed] = reason[row[changed]], instead[row[changed]]
    return Assignment(result.bucket, new_reason, nearest)


def one_of_each(found: Groups, clips: Clips, row: I64) -> Clips:
    """Return the clips without those for which, whatever the buckets, a better one of their group can stand."""
    fits = blocks.mask(row[clips.excluded == Reason.NONE], int(row.max(initial=-1)) + 1)
    part = found.take(fits[found.row])
    fits[part.row[part.first != np.arange(len(part.row))]] = False
    return clips.take(np.flatnonzero(fits[row] | (clips.excluded != Reason.NONE)))


def _stand(part: Groups, held: Mask, uid: U64, used: Mask, seed: int, epoch: int) -> I64:
    """Return for each row the row of its group that the epoch uses: one used already, the best, or the one in turn."""
    of_group = np.full(int(part.group.max(initial=-1)) + 1, -1, dtype=np.int64)
    first = part.row[part.first]
    of_group[part.group] = first
    waiting = part.take(part.in_turn & ~held[first] & ~held[part.row])
    waiting = waiting.take(np.lexsort((hash64(seed, uid[waiting.row], Purpose.DUPLICATE), waiting.group)))
    size = np.bincount(waiting.group, minlength=len(of_group))
    of_group[size > 0] = waiting.row[(np.cumsum(size) - size + epoch % np.maximum(size, 1))[size > 0]]
    again = part.take(np.flatnonzero(used[part.row])[::-1])  # of several the best
    of_group[again.group] = again.row
    return of_group[part.group]
