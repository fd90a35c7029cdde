"""Apply filters to a catalog's rows with Arrow, without a Python object for each row.

A missing number (a score that a row lacks, 0 / 0) is null, and a comparison with it is neither true nor false:
`and`, `or` and `not` follow Kleene's three-valued logic, and a filter keeps the rows for which it is true.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reelworks.core.arrays import Mask
from reelworks.data.catalog.filter_expression import (
    NUMBERS,
    TEXTS,
    Calculation,
    ColumnName,
    Condition,
    Constant,
    Joined,
    Negation,
    Relation,
    Search,
    Value,
    names_in,
    parse,
)
from reelworks.data.catalog.store.rows import CatalogRows
from reelworks.data.catalog.store.schema import TEXT, as_numpy

_NUMBER = pa.float64()
_CALCULATED = {"+": pc.add, "-": pc.subtract, "*": pc.multiply, "/": pc.divide}
_SIGN = {"<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal, "==": pc.equal, "!=": pc.not_equal}
_SEARCHED = {"startswith": pc.starts_with, "contains": pc.match_substring}


def keeps(rows: CatalogRows, text: str) -> Mask:
    """Return a mask of the rows that a filter keeps; the measures of unreadable files count as 0.

    A name that is not a column counts as a score that all rows lack; `scores_named` lists such names.
    """
    return holds(parse(text, scores=None), Columns(rows))


def scores_named(text: str) -> set[str]:
    """Return the names in a filter that are not columns of every catalog, and so must be scores."""
    return {*names_in(parse(text, scores=None))} - {*NUMBERS, *TEXTS}


class Columns(dict[str, Any]):
    """Columns of some rows by name, as Arrow arrays, each read when it is first used."""

    def __init__(self, rows: CatalogRows) -> None:
        super().__init__()
        self.rows = rows

    def __missing__(self, name: str) -> Any:
        rows = self.rows
        if name in TEXTS:
            column = getattr(rows, name).cast(TEXT).fill_null("")
        elif name == "caption_length":
            column = pc.utf8_length(rows.caption.fill_null("")).cast(_NUMBER)
        elif name in NUMBERS:
            column = pa.array(getattr(rows, name).astype(np.float64))
        else:
            score = rows.score(name)
            column = pa.array(score, mask=np.isnan(score))
        self[name] = column
        return column


def value(part: Condition | Value, columns: Columns) -> Any:
    """Evaluate a part of a filter: an Arrow array with a value for each row, or a scalar."""
    match part:
        case Constant(literal):
            return pa.scalar(literal)
        case ColumnName(name):
            return columns[name]
        case Calculation("+", [operand]):
            return value(operand, columns)
        case Calculation("-", [operand]):
            return pc.negate(value(operand, columns))
        case Calculation(sign, operands):
            result = _CALCULATED[sign](*(value(operand, columns) for operand in operands))
            return pc.if_else(pc.is_nan(result), pa.scalar(None, _NUMBER), result)
        case Relation(left, "in", Constant(tuple(values))):
            return _is_among(value(left, columns), values)
        case Relation(left, "not in", Constant(tuple(values))):
            return pc.invert(_is_among(value(left, columns), values))
        case Relation(left, sign, right):
            return _SIGN[sign](value(left, columns), value(right, columns))
        case Search(function, column, word):
            return _SEARCHED[function](columns[column.text], pattern=word.value)
        case Negation(search):
            return pc.invert(value(search, columns))
        case Joined(by, parts):
            return reduce(pc.and_kleene if by == "and" else pc.or_kleene, (value(p, columns) for p in parts))


def _is_among(operand: Any, values: tuple[float | str, ...]) -> Any:
    if isinstance(values[0], str):
        return pc.is_in(operand, value_set=pa.array(values, type=TEXT))
    # For numbers, is_in distinguishes -0.0 from 0.0 and returns false for null.
    inside = pc.is_in(pc.add(operand, 0.0), value_set=pc.add(pa.array(values, type=_NUMBER), 0.0))
    return pc.if_else(pc.is_null(operand), pa.scalar(None, pa.bool_()), inside)


def holds(condition: Condition, columns: Columns) -> Mask:
    """Return for which rows a condition is true."""
    mask = value(condition, columns)
    if isinstance(mask, pa.Scalar):  # it uses no column
        return np.full(len(columns.rows), bool(mask.as_py()))
    return as_numpy(mask.fill_null(False))
