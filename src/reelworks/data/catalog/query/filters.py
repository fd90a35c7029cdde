"""Apply filters to a catalog's rows with Arrow, without a Python object for each row.

A missing number (a score that a row lacks, 0 / 0) is null, and a comparison with it is neither true nor false:
`and`, `or` and `not` follow Kleene's three-valued logic, and a filter keeps the rows for which it is true.
"""

from __future__ import annotations

import ast
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelworks.data.catalog.filter_expression import NUMBERS, TEXTS, constant, parse
from reelworks.data.catalog.store.rows import CatalogRows, as_numpy

_TEXT = pa.large_string()
_NUMBER = pa.float64()


def keeps(rows: CatalogRows, text: str) -> NDArray[np.bool_]:
    """Return a mask of the rows that a filter keeps; the measures of unreadable files count as 0.

    A name that is not a column counts as a score that all rows lack; `scores_named` lists such names.
    """
    return holds(parse(text, scores=None).tree, Columns(rows))


class Columns(dict[str, Any]):
    """Columns of some rows by name, as Arrow arrays, each read when it is first used."""

    def __init__(self, rows: CatalogRows) -> None:
        super().__init__()
        self.rows = rows

    def __missing__(self, name: str) -> Any:
        self[name] = _column(self.rows, name)
        return self[name]


def scores_named(text: str) -> set[str]:
    """Return the names in a filter that are not columns of every catalog, and so must be scores."""
    return set(parse(text, scores=None).names) - {*NUMBERS, *TEXTS}


def _score(rows: CatalogRows, name: str) -> NDArray[np.float64]:
    return rows.scores[name] if name in rows.scores else np.full(len(rows), np.nan)


def _column(rows: CatalogRows, name: str) -> Any:
    if name in TEXTS:
        return getattr(rows, name).cast(_TEXT).fill_null("")
    if name == "caption_length":
        return pc.utf8_length(rows.caption.fill_null("")).cast(_NUMBER)
    if name in NUMBERS:
        return pa.array(getattr(rows, name).astype(np.float64))
    score = _score(rows, name)
    return pa.array(score, mask=np.isnan(score))


_ARITHMETIC: dict[type, Any] = {ast.Add: pc.add, ast.Sub: pc.subtract, ast.Mult: pc.multiply, ast.Div: pc.divide}
_COMPARISONS: dict[type[ast.cmpop], Any] = {
    ast.Lt: pc.less,
    ast.LtE: pc.less_equal,
    ast.Gt: pc.greater,
    ast.GtE: pc.greater_equal,
    ast.Eq: pc.equal,
    ast.NotEq: pc.not_equal,
}
_SEARCHES = {"startswith": pc.starts_with, "contains": pc.match_substring}


def value(node: ast.expr, columns: Columns) -> Any:
    """Evaluate a part of a checked syntax tree: an Arrow array with a value for each row, or a scalar."""
    if (literal := constant(node)) is not None:
        return pa.scalar(literal)
    match node:
        case ast.Name(id=name):
            return columns[name]
        case ast.BoolOp(op=op, values=parts):
            joined = pc.and_kleene if isinstance(op, ast.And) else pc.or_kleene
            return reduce(joined, (value(part, columns) for part in parts))
        case ast.UnaryOp(op=op, operand=operand):
            inner = value(operand, columns)
            if isinstance(op, ast.UAdd):
                return inner
            return pc.invert(inner) if isinstance(op, ast.Not) else pc.negate(inner)
        case ast.BinOp(left=left, op=op, right=right):
            result = _ARITHMETIC[type(op)](value(left, columns), value(right, columns))
            return pc.if_else(pc.is_nan(result), pa.scalar(None, _NUMBER), result)
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            links = zip([left, *comparators], ops, comparators, strict=False)
            return reduce(pc.and_kleene, (_link(*link, columns) for link in links))
        case ast.Call(func=ast.Name(id=name), args=[column, word]):
            return _SEARCHES[name](value(column, columns), pattern=constant(word))
    raise AssertionError(ast.dump(node))


def _link(left: ast.expr, op: ast.cmpop, right: ast.expr, columns: Columns) -> Any:
    """Return for which rows one comparison of a chain is true."""
    operand = value(left, columns)
    if not isinstance(op, ast.In | ast.NotIn):
        return _COMPARISONS[type(op)](operand, value(right, columns))
    assert isinstance(right, ast.List | ast.Tuple)
    values = [constant(item) for item in right.elts]
    if isinstance(values[0], str):
        inside = pc.is_in(operand, value_set=pa.array(values, type=_TEXT))
    else:
        # For numbers, is_in distinguishes -0.0 from 0.0 and returns false for null.
        inside = pc.is_in(pc.add(operand, 0.0), value_set=pc.add(pa.array(values, type=_NUMBER), 0.0))
        inside = pc.if_else(pc.is_null(operand), pa.scalar(None, pa.bool_()), inside)
    return pc.invert(inside) if isinstance(op, ast.NotIn) else inside


def holds(node: ast.expr, columns: Columns) -> NDArray[np.bool_]:
    """Return for which rows a condition is true."""
    mask = value(node, columns)
    if isinstance(mask, pa.Scalar):  # it uses no column
        return np.full(len(columns.rows), bool(mask.as_py()))
    return as_numpy(mask.fill_null(False))
