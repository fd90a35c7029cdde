"""The clips that an epoch leaves out, by reason.

Repeats of a clip count once, and not at all if one of them is trained.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelworks.core import blocks
from reelworks.core.errors import first_few
from reelworks.core.log import logger
from reelworks.data.buckets.assign import Assignment, Reason
from reelworks.data.loader.dataset import Dataset

_MOST_NAMED = 3


@dataclass(frozen=True)
class Rejection:
    """Clips left out for one reason.

    Attributes:
        row: Rows of the clips, ascending.
        nearest: Index of the bucket entry that each clip misses by least; of duplicates the row of the clip that stands for
            each; -1 if there is none.
    """

    reason: Reason
    row: NDArray[Any]
    nearest: NDArray[Any]


def by_reason(assignment: Assignment, row: NDArray[Any]) -> list[Rejection]:
    """Group the clips that an epoch leaves out by reason; a clip is not left out if any use is trained.

    Of uses with several reasons one that another epoch may train counts, or else the first. `row` is the row of each use in
    the assignment; uses of a clip are adjacent.
    """
    trained = blocks.mask(row[assignment.reason == Reason.NONE], int(row.max(initial=-1)) + 1)
    rejections = []
    never = blocks.indices(assignment.reason != Reason.NONE)
    never = never[~trained[row[never]]]
    if (np.diff(row[never]) == 0).any():  # clips have several uses
        waits = np.isin(assignment.reason[never], [reason for reason in Reason if reason.is_planned])
        never = never[np.lexsort((~waits, row[never]))]
        never = never[np.diff(row[never], prepend=-1) != 0]
    for reason in list(Reason)[1:]:  # all but NONE
        where = never[assignment.reason[never] == reason]
        if len(where):
            rejections.append(Rejection(reason, row[where], assignment.nearest[where]))
    return rejections


def warn_of_lines(dataset: Dataset) -> None:
    """Warn once of lines of the exclude file that leave no clip out."""
    if unmatched := dataset.exclude_list.unmatched(dataset.rows):
        _tell_of_lines(dataset.spec.exclude_file, tuple(unmatched))


@functools.cache
def _tell_of_lines(file: str | None, unmatched: tuple[str, ...]) -> None:
    logger.warning(
        "%s: %s no clip, and leaves none out: %s; a line is dataset/path, as rw.plan(...).rejected.paths(reason) has it",
        file,
        "a line names" if len(unmatched) == 1 else f"each of {len(unmatched)} lines names",
        first_few(unmatched),
    )


def warn(dataset: Dataset, epoch: int) -> None:
    """Warn of clips that nobody chose to leave out of an epoch, and name the first of each reason."""
    warn_of_lines(dataset)
    found = by_reason(*dataset.assignment(epoch))
    found = [r for r in found if not (r.reason.is_chosen or r.reason.is_planned)]
    named = []
    for group in found:
        labels = dataset.rows.labels(group.row[:_MOST_NAMED])
        more = len(group.row) - len(labels)
        named.append(f"{group.reason.label}: {', '.join(labels)}" + (f", and {more:,} more" if more else ""))
    if named:
        logger.warning(
            "%d of %d clips are not trained; rw.plan(...).rejected.paths(reason) lists them: %s",
            sum(len(r.row) for r in found),
            len(dataset.rows),
            "; ".join(named),
        )
