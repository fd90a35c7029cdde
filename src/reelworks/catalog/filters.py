"""Filters applied to a catalog's rows; numpy and Arrow do the work, no row becomes a Python object."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelworks.catalog.filter_expression import NUMBERS, TEXTS, Truth, parse
from reelworks.catalog.rows import CatalogRows

_TEXT = pa.large_string()


def keeps(rows: CatalogRows, text: str) -> Truth:
    """True for the rows that a filter keeps; the measures of unreadable files count as 0.

    A name that is no column is a score that no row has; `scores_named` tells such names.

    Raises:
        UserError: The text is not a filter.
    """
    return parse(text, scores=None).evaluate(_RowColumns(rows), len(rows))


def values(rows: CatalogRows, row: int, text: str) -> dict[str, Any]:
    """Return one row's values in the columns of a filter; None for a score or caption that it lacks."""
    told: dict[str, Any] = {}
    for name in parse(text, scores=None).names:
        if name == "caption_length":
            told[name] = len(rows.caption[row].as_py() or "")
        elif name in NUMBERS:
            told[name] = getattr(rows, name)[row].item()
        elif name in TEXTS:
            told[name] = getattr(rows, name)[row].as_py()
        else:
            score = float(_score(rows, name)[row])
            told[name] = None if math.isnan(score) else score
    return told


def scores_named(text: str) -> set[str]:
    """Names in a filter that are no columns of every catalog."""
    return set(parse(text, scores=None).names) - {*NUMBERS, *TEXTS}


def _score(rows: CatalogRows, name: str) -> NDArray[np.float64]:
    return rows.scores[name] if name in rows.scores else np.full(len(rows), np.nan)


@dataclass(frozen=True)
class _RowColumns:
    """Columns of rows, as expressions ask for them."""

    rows: CatalogRows

    def numbers(self, name: str) -> NDArray[np.float64]:
        if name == "caption_length":
            lengths = pc.utf8_length(self.rows.caption.fill_null(""))
            return np.asarray(lengths.to_numpy(zero_copy_only=False), dtype=np.float64)
        if name not in NUMBERS:
            return _score(self.rows, name)
        return np.asarray(getattr(self.rows, name), dtype=np.float64)

    def texts(self, name: str) -> _Texts:
        return _Texts(getattr(self.rows, name).cast(_TEXT).fill_null(""))


@dataclass(frozen=True)
class _Texts:
    """A text column without nulls."""

    column: Any

    def is_in(self, texts: Sequence[str]) -> Truth:
        return _mask(pc.is_in(self.column, value_set=pa.array(texts, type=_TEXT)))

    def startswith(self, text: str) -> Truth:
        return _mask(pc.starts_with(self.column, pattern=text))

    def contains(self, text: str) -> Truth:
        return _mask(pc.match_substring(self.column, pattern=text))


def _mask(column: Any) -> Truth:
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.bool_)
