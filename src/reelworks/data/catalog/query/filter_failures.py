"""Tell which parts of a filter rows fail, with their values and the nearest limits that would take them.

A row that is left out fails some of the conditions that the filter joins by `and`, and these, joined, are a filter again:
so a record needs to keep nothing but their text, and the row's values tell the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reelworks.core.arrays import F64, Mask
from reelworks.data.catalog import filter_expression
from reelworks.data.catalog.filter_expression import (
    OPPOSITE,
    TEXTS,
    ColumnName,
    Condition,
    Joined,
    Limit,
    joined,
    names_in,
    parse,
)
from reelworks.data.catalog.query import filters
from reelworks.data.catalog.query.filters import Columns
from reelworks.data.catalog.store.rows import CatalogRows
from reelworks.data.catalog.store.schema import TEXT, as_numpy

_UP_TO_PARTS = 14  # parts of a filter that are told apart; all others count as one
_DIGITS = 6
_SHOWN_LETTERS = 60


def failed_parts(rows: CatalogRows, text: str) -> Any:
    """Return the parts of a filter that each row fails, joined by `and`, as a dictionary array; null for a row it keeps."""
    columns, parts = Columns(rows), _parts(text)
    code = np.zeros(len(rows), dtype=np.uint16)
    for i, part in enumerate(parts):
        code |= (~filters.holds(part, columns)).astype(np.uint16) << np.uint16(i)
    used = np.flatnonzero(np.bincount(code, minlength=1 << len(parts)))
    used = used[used > 0]
    words = [joined([part for i, part in enumerate(parts) if n >> i & 1]).text for n in used.tolist()]
    index = pa.array(np.searchsorted(used, code).astype(np.int32), mask=code == 0)
    return pa.DictionaryArray.from_arrays(index, pa.array(words, type=pa.string()))


def limits_that_take(rows: CatalogRows, failed: str) -> Any:
    """Return for each row the nearest limits with which it would pass a filter, as an array of texts.

    Each is a filter, such as `aes >= 4.1 and height >= 360`. It is null where other limits would not help: a value is
    missing, or compared with another column, with texts or for equality.

    Args:
        rows: The rows, which fail every part of the filter.
        failed: The filter, as `failed_parts` gives it.
    """
    return _limits(parse(failed, scores=None), Columns(rows)).text


def details(rows: CatalogRows, failed: str) -> list[str]:
    """Return for each row its values, the limits that it fails, and `limits_that_take`; arguments are those."""
    columns, parts = Columns(rows), _parts(failed)
    taking = _join(_limits(joined(parts), columns).text, "would take it")
    return list(_join_present(*(_detail(part, columns) for part in parts), taking, by="; ").to_pylist())


def details_by_part(rows: CatalogRows, failed: Any) -> list[str]:
    """Return `details` of rows of which each fails its own parts, a dictionary array; "" where that is null."""
    texts = np.full(len(rows), "", dtype=object)
    for code, part in enumerate(failed.dictionary.to_pylist()):
        at = np.flatnonzero(as_numpy(pc.equal(failed.indices, code).fill_null(False)))
        texts[at] = details(rows.take(at), part)
    return list(texts)


def _parts(text: str) -> list[Condition]:
    """Return the parts of a filter that are told apart."""
    parts = filter_expression.parts_of(parse(text, scores=None))
    more = parts[_UP_TO_PARTS:]
    return [*parts[:_UP_TO_PARTS], *([joined(more)] if more else [])]


def _values_of(limit: Limit, columns: Columns) -> Any:
    """Return the values that are compared with a limit as texts of few digits, rounded to the side that it takes.

    Null for one that is missing or not finite.
    """
    values = as_numpy(filters.value(limit.measured, columns).cast(pa.float64())).astype(np.float64)
    short = rounded(values, np.ceil if limit.is_most else np.floor)
    return pa.array(short, mask=~np.isfinite(values)).cast(TEXT)


def rounded(values: F64, towards: Callable[[Any], Any]) -> F64:
    """Round to six significant digits, up with `np.ceil` or down with `np.floor`, but keep what is short already."""
    with np.errstate(all="ignore"):
        scale = 10.0 ** (_DIGITS - 1 - np.floor(np.log10(np.abs(values))))
        near, beyond = np.round(values * scale) / scale, towards(values * scale) / scale
        holds = np.less_equal if towards is np.floor else np.greater_equal
        return np.where(holds(near, values), near, np.where(holds(beyond, values), beyond, values))


class _Taking(NamedTuple):
    """Limits with which rows meet a condition.

    Attributes:
        text: A filter for each row; null for one that meets the condition as it is, or cannot by other limits.
        can: Whether a row meets the condition with these limits, or as it is.
    """

    text: Any
    can: Mask


def _limits(condition: Condition, columns: Columns) -> _Taking:
    if isinstance(condition, Joined):
        inner = [_limits(one, columns) for one in condition.parts]
        can: Any = np.array([one.can for one in inner])
        as_it_is = can & [as_numpy(one.text.is_null()) for one in inner]
        if condition.by == "or":
            text = _join_present(*(one.text for one in inner), by=" or ")
            possible, needed = can.any(axis=0), ~as_it_is.any(axis=0)
        else:
            text = _join_present(*(_in_brackets(one.text) for one in inner), by=" and ")
            possible, needed = can.all(axis=0), ~as_it_is.all(axis=0)
        return _Taking(pc.if_else(pa.array(possible & needed), text, None), possible)
    met = filters.holds(condition, columns)
    if (limit := Limit.of_part(condition)) is None:
        return _Taking(pa.nulls(len(met), TEXT), met)
    text = _join(limit.measured.text, "<=" if limit.is_most else ">=", _values_of(limit, columns))
    text = pc.if_else(pa.array(met), None, text)
    return _Taking(text, met | as_numpy(text.is_valid()))


def _join(*parts: Any, by: str = " ") -> Any:
    """Join texts and arrays of texts for each row; null where one is missing."""
    texts = [pa.scalar(part, TEXT) if isinstance(part, str) else part.cast(TEXT) for part in (*parts, by)]
    return pc.binary_join_element_wise(*texts)


def _join_present(*parts: Any, by: str) -> Any:
    """Join the texts that a row has; "" where it has none."""
    # Without null_handling="skip", which loses rows that have none.
    present = [_join(by, part, by="") for part in parts]
    texts = pc.binary_join_element_wise(*present, pa.scalar("", TEXT), null_handling="replace", null_replacement="")
    return pc.utf8_slice_codeunits(texts, len(by))


def _in_brackets(text: Any) -> Any:
    return pc.if_else(pc.match_substring(text, " or "), _join("(", text, ")", by=""), text)


def _detail(part: Condition, columns: Columns) -> Any:
    """Return for each row, for people, how it fails a condition."""
    has = [_shown(name, columns[name]) for name in names_in(part)]
    nothing = pa.array(["no value that it asks for"] * len(columns.rows), type=TEXT)
    all_values = _join(*has, by=", ") if has else nothing
    told = _join(f"{part.text}: the clip has", all_values)
    if (limit := Limit.of_part(part)) is None:
        return told
    name, against = limit.measured.text, f"{OPPOSITE[limit.sign]} {limit.limit.text}"
    if isinstance(limit.measured, ColumnName):
        return pc.coalesce(_join(name, _values_of(limit, columns), against), told)
    return pc.coalesce(
        _join(_join(name, "is", _values_of(limit, columns), against), " (", all_values, ")", by=""), told
    )


def _shown(name: str, column: Any) -> Any:
    """Return a column's values for people: `height 480`, `codec 'h264'`, `no aes`."""
    if name in TEXTS:
        dots = pc.if_else(pc.greater(pc.utf8_length(column), _SHOWN_LETTERS), "…", "")
        return _join(f"{name} '", pc.utf8_slice_codeunits(column, 0, _SHOWN_LETTERS), dots, "'", by="")
    short = rounded(as_numpy(column).astype(np.float64), np.floor)
    numbers = pa.array(short, mask=as_numpy(column.is_null())).cast(TEXT)
    return pc.coalesce(_join(name, numbers), pa.scalar(f"no {name}", TEXT))
