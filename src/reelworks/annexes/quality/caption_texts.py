"""The captions of a catalog as columns of different texts."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelworks.annexes.quality.caption_needs import CaptionNeeds
from reelworks.data.catalog.store.rows import CatalogRows
from reelworks.training.plan.data_advice import FILES_NAMED


class Texts:
    """The captions of readable clips: different texts in a column, and the rows that have each.

    Attributes:
        unique: Different captions, none of them empty.
        total: Number of captions.
    """

    def __init__(self, rows: CatalogRows, needs: CaptionNeeds) -> None:
        self.rows, self._needs = rows, needs
        captions = rows.caption.fill_null("")
        at = np.flatnonzero(rows.readable & np.asarray(pc.not_equal(pc.utf8_trim_whitespace(captions), "")))
        texts = captions.take(pa.array(at))
        if needs.line_datasets and rows.of_datasets(needs.line_datasets)[at].any():
            texts, at = _by_lines(texts, at, rows.of_datasets(needs.line_datasets)[at])
        encoded = texts.dictionary_encode()
        self.unique, self._code, self._row = encoded.dictionary, np.asarray(encoded.indices), at
        self.total = len(at)

    def of_datasets(self, names: Collection[str], *, others: bool = False) -> Texts:
        """Return the captions of some datasets, or of all others."""
        some = self.rows.of_datasets(names) != others
        return self if some.all() else Texts(self.rows.take(np.flatnonzero(some)), self._needs)

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Number of captions with each text."""
        return np.bincount(self._code, minlength=len(self.unique))

    def matching(self, pattern: str, among: NDArray[np.int64] | None = None) -> NDArray[np.bool_]:
        """Return a mask of the texts that a regular expression of RE2 finds; of those `among` some indices only, if given."""
        if among is None:
            return np.asarray(pc.match_substring_regex(self.unique, pattern))
        where = np.zeros(len(self.unique), dtype=np.bool_)
        where[among] = np.asarray(pc.match_substring_regex(self.unique.take(pa.array(among)), pattern))
        return where

    def number(self, where: NDArray[np.bool_]) -> int:
        """Return the number of captions with the texts of a mask."""
        return int(self.counts[where].sum())

    def files(self, where: NDArray[np.bool_]) -> tuple[str, ...]:
        """Return the labels of some of the clips with these texts."""
        found = np.flatnonzero(where[self._code])[:FILES_NAMED]
        return tuple(self.rows.label(i) for i in dict.fromkeys(self._row[found].tolist()))

    def some(self, where: NDArray[np.bool_] | None, most: int) -> tuple[NDArray[np.int64], list[str]]:
        """Return the indices of at most so many texts of a mask, evenly spaced, and the texts."""
        at = np.arange(len(self.unique)) if where is None else np.flatnonzero(where)
        if len(at) > most:
            at = at[np.linspace(0, len(at) - 1, most).astype(np.int64)]
        return at, self.unique.take(pa.array(at)).to_pylist()


def _by_lines(texts: Any, at: NDArray[np.int64], split: NDArray[np.bool_]) -> tuple[Any, NDArray[np.int64]]:
    """Return each line of some texts as a text of its own, with the rows of all."""
    marked = pc.if_else(pa.array(split), texts, pc.replace_substring(texts, "\n", " "))
    lines = pc.split_pattern_regex(marked, r"[\r\n]+")
    flat, parent = pc.utf8_trim_whitespace(pc.list_flatten(lines)), np.asarray(pc.list_parent_indices(lines))
    some = np.asarray(pc.not_equal(flat, ""))
    return flat.filter(pa.array(some)), at[parent[some]]
