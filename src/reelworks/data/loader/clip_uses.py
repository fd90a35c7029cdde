"""Uses of clips in an epoch: repeats, and for each of these one for every resolution and length that a dataset names.

The uses of a clip are numbered from 0: first one at each resolution and length, then those of the next repeat, so that other
repeats change no number. The number of a use is the `copy` of plans and records, so that each use is planned, drawn and
accounted for by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reelworks.core import blocks, units
from reelworks.core.arrays import F64, I64, Integers
from reelworks.core.errors import UserError
from reelworks.data.buckets import sizes
from reelworks.data.buckets.entry import Draws, Entry
from reelworks.data.buckets.table import BucketTable
from reelworks.data.catalog.config import DatasetConfig

if TYPE_CHECKING:
    from reelworks.data.catalog.store.rows import CatalogRows

_MOST = 1 << 30  # more clips and repeats would not fit into memory


class Choice(NamedTuple):
    """A resolution and a length of a dataset; None where it leaves them open."""

    resolution: str | None
    length: int | None

    def takes(self, entry: Entry) -> bool:
        """Return whether a use may take an entry; lengths are those of videos."""
        budget = None if self.resolution is None else sizes.pixel_budget(self.resolution)
        has_length = self.length is None or entry.num_frames in (1, self.length)
        return has_length and (budget is None or budget == (entry.pixels, entry.size))


@dataclass(frozen=True)
class ClipUses:
    """Uses that an epoch may have, those of a clip next to one another, in integers as narrow as they can be.

    Attributes:
        row: Row of each use.
        copy: Number of the use among those of its clip.
        repeat: Number of its repeat.
        choice: Index into the choices of all datasets; None if no dataset names resolutions or lengths.
    """

    row: Integers
    copy: Integers
    repeat: Integers
    choice: Integers | None


def choices(datasets: Sequence[DatasetConfig]) -> list[list[Choice]]:
    """Return the choices of each dataset, which differ in the resolution first."""
    return [
        [Choice(resolution, length) for length in d.lengths or (None,) for resolution in d.resolutions or (None,)]
        for d in datasets
    ]


def uses(rows: CatalogRows, datasets: Sequence[DatasetConfig]) -> ClipUses:
    """Return the uses of all rows; rows of other datasets have none."""
    most = {d.dataset_name: math.ceil(min(d.repeats, _MOST + 1)) for d in datasets}
    repeats = rows.per_dataset(most, default=0, dtype=blocks.kind_of(max(most.values(), default=0)))
    named = bool(of_datasets(datasets))
    numbers = _numbers(rows, datasets) if named else None
    times = repeats if numbers is None else repeats * numbers
    row = np.arange(len(times), dtype=blocks.kind_of(len(times)))
    if not named and times.min(initial=1) == times.max(initial=1) == 1:
        zeros = np.zeros(len(times), dtype=np.int8)
        return ClipUses(row, zeros, zeros, None)
    if (total := int(times.sum())) > _MOST:
        raise UserError(
            f"an epoch would use {units.plural(len(times), 'clip')} {total} times in total, the maximum is {_MOST}",
            code="too-many-repeats",
            field="dataset.repeats",
            value=[d.repeats for d in datasets],
            remedy="lower dataset.repeats",
        )
    row = np.repeat(row, times)
    copy = blocks.narrow(np.arange(len(row)) - np.repeat(np.cumsum(times) - times, times))
    if numbers is None:
        return ClipUses(row, copy, copy, None)
    first = np.cumsum([0, *(len(of_one) for of_one in choices(datasets))])
    begin = rows.per_dataset({d.dataset_name: int(n) for d, n in zip(datasets, first, strict=False)}, default=0)
    return ClipUses(row, copy, copy // numbers[row], begin[row] + copy % numbers[row])


def of_datasets(datasets: Sequence[DatasetConfig]) -> dict[str, list[list[Any]]]:
    """Return the resolutions and lengths that datasets name, by dataset; those that name none are left out."""
    return {d.dataset_name: [d.resolutions or [], d.lengths or []] for d in datasets if d.resolutions or d.lengths}


def showings(rows: CatalogRows, datasets: Sequence[DatasetConfig]) -> F64:
    """Return the mean number of repeats of each row in an epoch."""
    return rows.per_dataset({d.dataset_name: d.repeats for d in datasets}, default=0.0)


def _numbers(rows: CatalogRows, datasets: Sequence[DatasetConfig]) -> I64:
    """Return the number of choices of each row: a picture has those of resolutions alone."""
    of_pictures = rows.per_dataset({d.dataset_name: len(d.resolutions or (1,)) for d in datasets}, default=1)
    of_videos = rows.per_dataset(
        {d.dataset_name: len(of) for d, of in zip(datasets, choices(datasets), strict=True)}, default=1
    )
    return np.where(rows.is_image, of_pictures, of_videos)


def allowed(datasets: Sequence[DatasetConfig], table: BucketTable) -> NDArray[np.int8]:
    """Return `[choices, entries]`: 2 where the uses of a choice may take an entry, 1 where those of another length may.

    Raises:
        UserError: A dataset names a resolution or length that no entry has.
    """
    _refuse_unknown(datasets, table)
    every = [(c, [o for o in of_one if o.resolution == c.resolution]) for of_one in choices(datasets) for c in of_one]
    rows = [[c.takes(entry) + any(o.takes(entry) for o in alike) for entry in table.entries] for c, alike in every]
    return np.array(rows, dtype=np.int8)


def _refuse_unknown(datasets: Sequence[DatasetConfig], table: BucketTable) -> None:
    for field, value, choice in _named(datasets):
        has_it = any(e.num_frames == choice.length if field == "lengths" else choice.takes(e) for e in table.entries)
        if has_it and table.draws is Draws.ONE:
            continue
        known = dict.fromkeys(e.num_frames if field == "lengths" else e.resolution for e in table.entries)
        problem = f"no entry of the buckets has this {'resolution' if field == 'resolutions' else 'number of frames'}"
        remedy = f"choose of {', '.join(map(str, known))}, or add an entry"
        if table.draws is not Draws.ONE:
            problem = "a table of Open-Sora decides by its probabilities where a clip is used"
            remedy = "leave it out, or give entries in place of the table"
        raise UserError(problem, code="uses-of-no-entry", field=f"dataset.{field}", value=value, remedy=remedy)


def _named(datasets: Sequence[DatasetConfig]) -> Iterator[tuple[str, str | int, Choice]]:
    for dataset in datasets:
        for one in dataset.resolutions or ():
            try:
                sizes.pixel_budget(one)
            except UserError as error:
                error.reword(field="dataset.resolutions")
                raise
            yield "resolutions", one, Choice(one, None)
        yield from (("lengths", one, Choice(None, one)) for one in dataset.lengths or ())
