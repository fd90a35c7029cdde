"""Why a clip stays out of every epoch, as far as it is known before shapes are looked at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from reelworks.buckets.assign import Reason
from reelworks.catalog import filters
from reelworks.catalog.companions import Found, Problem
from reelworks.catalog.config import DatasetConfig
from reelworks.catalog.rows import CatalogRows


def reasons(
    rows: CatalogRows,
    datasets: Sequence[DatasetConfig],
    *,
    companions: Iterable[Found],
    quarantined: NDArray[np.bool_],
) -> NDArray[np.int8]:
    """Reason of each row, or `Reason.NONE`; of several the last one here.

    Args:
        rows: Rows of the catalog.
        datasets: The recipe's.
        companions: Those of the rows, of each kind that some dataset has.
        quarantined: True for rows that the quarantine names.
    """
    excluded = np.full(len(rows), Reason.NONE, dtype=np.int8)
    for text in {d.filter for d in datasets if d.filter is not None}:
        its = rows.of_datasets([d.dataset_name for d in datasets if d.filter == text])
        excluded[its & ~filters.keeps(rows, text)] = Reason.FILTERED
    for found in companions:
        excluded[found.problem != Problem.NONE] = Reason.NO_COMPANION
    filled = rows.of_datasets([d.dataset_name for d in datasets if d.missing_caption is not None])
    excluded[~rows.captioned & ~filled] = Reason.NO_CAPTION
    excluded[quarantined] = Reason.QUARANTINED
    excluded[~rows.readable] = Reason.UNREADABLE
    return excluded
