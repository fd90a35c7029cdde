"""How often an epoch shows each clip: its dataset's `repeats` times `weight`, on average."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from reelworks.catalog.config import DatasetConfig
from reelworks.catalog.rows import CatalogRows
from reelworks.core.errors import UserError

_MOST = 1 << 30  # more would not fit into memory


def of_rows(rows: CatalogRows, datasets: Sequence[DatasetConfig]) -> NDArray[np.float64]:
    """Showings of each row in an epoch, on average."""
    of = {d.dataset_name: round(d.repeats * d.weight, 9) for d in datasets}
    names = rows.dataset.dictionary.to_pylist()  # it may hold datasets that no row is of
    shown: NDArray[np.float64] = np.array([of.get(name, 0) for name in names], dtype=np.float64)[
        rows.dataset.indices.to_numpy(zero_copy_only=False)
    ]
    return shown


def copies(
    shown: NDArray[np.float64], datasets: Sequence[DatasetConfig]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row and copy number of everything that an epoch may show; copies of a clip stand side by side.

    Raises:
        UserError: There are too many.
    """
    times = np.ceil(shown).astype(np.int64)
    if (total := int(times.sum())) > _MOST:
        raise UserError(
            f"an epoch would have {total} showings of {len(times)} clips",
            field="dataset.repeats",
            value=[d.repeats * d.weight for d in datasets],
            remedy="lower repeats, or weight, which multiplies it",
        )
    row = np.repeat(np.arange(len(times)), times)
    return row, np.arange(len(row)) - np.repeat(np.cumsum(times) - times, times)
