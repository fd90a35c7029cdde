"""Repeat clips in an epoch (`dataset.repeats`), and group the clips that belong together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelworks.catalog.config import DatasetConfig
from reelworks.catalog.rows import CatalogRows
from reelworks.core.errors import UserError
from reelworks.core.hash_rng import hash64, text_words

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
_MOST = 1 << 30  # more would not fit into memory


def showings_per_epoch(rows: CatalogRows, datasets: Sequence[DatasetConfig]) -> F64:
    """Return the mean number of times that an epoch shows each row."""
    repeats = {d.dataset_name: d.repeats for d in datasets}
    names = rows.dataset.dictionary.to_pylist()  # it may hold datasets without a row
    shown = np.array([repeats.get(name, 0) for name in names], dtype=np.float64)
    index: I64 = np.asarray(rows.dataset.indices)
    return shown[index]


def copies(shown: F64, datasets: Sequence[DatasetConfig]) -> tuple[I64, I64]:
    """Return row and repeat number of every clip that an epoch may show; repeats of a clip are adjacent.

    Raises:
        UserError: There are too many repeats.
    """
    times = np.ceil(shown).astype(np.int64)
    if (total := int(times.sum())) > _MOST:
        raise UserError(
            f"an epoch would show {len(times)} clips {total} times in total, the maximum is {_MOST}",
            code="too-many-repeats",
            field="dataset.repeats",
            value=[d.repeats for d in datasets],
            remedy="lower dataset.repeats",
        )
    row = np.repeat(np.arange(len(times)), times)
    return row, np.arange(len(row)) - np.repeat(np.cumsum(times) - times, times)


def group_keys(rows: CatalogRows, by: Literal["file", "folder"]) -> NDArray[np.uint64]:
    """Return a key for the group of each row; a file that is its own group has its uid as key."""
    if by == "folder":  # clips directly in a dataset's folder share one
        folder = pc.replace_substring_regex(rows.path, pattern=r"/?[^/]*$", replacement="").dictionary_encode()
        return hash64(_hashes(rows.dataset), _hashes(folder))
    groups = rows.uid.copy()
    shared = np.flatnonzero(pc.not_equal(rows.group, rows.path))
    groups[shared] = _hashes(rows.group.take(pa.array(shared)).dictionary_encode())
    return groups


def _hashes(words: Any) -> NDArray[np.uint64]:
    """Hash a dictionary-encoded column, each distinct word once, as `hash_int` does."""
    word_hashes = hash64(text_words(words.dictionary.to_pylist()))
    word: I64 = np.asarray(words.indices)
    return word_hashes[word]
