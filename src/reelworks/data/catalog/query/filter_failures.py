"""Tell which parts of a filter rows fail, with their values and the nearest limits that would take them.

The parts of a filter are the conditions that it joins by `and`, after `not` was moved to its comparisons and chains such
as `480 <= height < 720` were divided. A row that is left out fails some of them, and these, joined, are a filter again:
so a record needs to keep nothing but their text, and the row's values tell the rest.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelworks.data.catalog.filter_expression import FUNCTIONS, TEXTS, parse
from reelworks.data.catalog.query import filters
from reelworks.data.catalog.query.filters import Columns
from reelworks.data.catalog.store.rows import CatalogRows, as_numpy

_TEXT = pa.large_string()
_UP_TO_PARTS = 14  # parts of a filter that are told apart; all others count as one
_DIGITS = 6
_SHOWN_LETTERS = 60
_OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_MIRRORED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt,
    ast.LtE: ast.GtE,
    ast.Gt: ast.Lt,
    ast.GtE: ast.LtE,
}
_SIGNS: dict[type[ast.cmpop], str] = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}


def failed_parts(rows: CatalogRows, text: str) -> Any:
    """Return the parts of a filter that each row fails, joined by `and`, as a dictionary array; null for a row it keeps."""
    columns, parts = Columns(rows), parts_of(text)
    code = np.zeros(len(rows), dtype=np.uint16)
    for i, part in enumerate(parts):
        code |= (~filters.holds(part, columns)).astype(np.uint16) << np.uint16(i)
    used = np.flatnonzero(np.bincount(code, minlength=1 << len(parts)))
    used = used[used > 0]
    words = [text_of(joined([part for i, part in enumerate(parts) if n >> i & 1])) for n in used.tolist()]
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
    return _limits(joined(parts_of(failed)), Columns(rows)).text


def details(rows: CatalogRows, failed: str) -> list[str]:
    """Return for each row its values, the limits that it fails, and `limits_that_take`; arguments are those."""
    columns, parts = Columns(rows), parts_of(failed)
    taking = _join(_limits(joined(parts), columns).text, "would take it")
    texts = [_detail(part, columns) for part in parts]
    told: list[str] = _join_present(*texts, taking, by="; ").to_pylist()
    return told


def details_by_part(rows: CatalogRows, failed: Any) -> list[str]:
    """Return `details` of rows of which each fails its own parts, a dictionary array; "" where that is null."""
    texts = np.full(len(rows), "", dtype=object)
    for code, part in enumerate(failed.dictionary.to_pylist()):
        at = np.flatnonzero(as_numpy(pc.equal(failed.indices, code).fill_null(False)))
        texts[at] = details(rows.take(at), part)
    return list(texts)


@lru_cache(maxsize=64)
def parts_of(text: str) -> tuple[ast.expr, ...]:
    """Return the parts of a filter as syntax trees."""
    tree = _normal(parse(text, scores=None).tree)
    parts = tree.values if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And) else [tree]
    more = parts[_UP_TO_PARTS:]
    return (*parts[:_UP_TO_PARTS], *([joined(more)] if more else []))


def _normal(node: ast.expr, *, negated: bool = False) -> ast.expr:
    """Return a condition, or its opposite, with `not` before searches alone, and with chains divided."""
    match node:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _normal(operand, negated=not negated)
        case ast.BoolOp(op=op, values=values):
            parts = [_normal(value, negated=negated) for value in values]
            return joined(parts, ast.And() if isinstance(op, ast.And) != negated else ast.Or())
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            links = zip([left, *comparators], ops, comparators, strict=False)
            chain: list[ast.expr] = [
                ast.Compare(a, [_OPPOSITE[type(op)]() if negated else op], [b]) for a, op, b in links
            ]
            return joined(chain, ast.Or() if negated else ast.And())
    return ast.UnaryOp(ast.Not(), node) if negated else node


def joined(parts: Sequence[ast.expr], op: ast.boolop | None = None) -> ast.expr:
    """Join conditions by `and` or another operator, as one that has no part of the same operator."""
    op = op or ast.And()
    flat: list[ast.expr] = []
    for one in parts:
        flat += one.values if isinstance(one, ast.BoolOp) and isinstance(one.op, type(op)) else [one]
    return flat[0] if len(flat) == 1 else ast.BoolOp(op, flat)


def text_of(node: ast.expr) -> str:
    """Return a condition as the text of a filter."""
    if not isinstance(node, ast.BoolOp):
        return ast.unparse(node)
    is_and = isinstance(node.op, ast.And)
    inner = ((text_of(one), is_and and isinstance(one, ast.BoolOp)) for one in node.values)
    return f" {'and' if is_and else 'or'} ".join(f"({text})" if brackets else text for text, brackets in inner)


def _names(node: ast.expr) -> list[str]:
    return list(dict.fromkeys(n.id for n in ast.walk(node) if isinstance(n, ast.Name) and n.id not in FUNCTIONS))


class Limit(NamedTuple):
    """A comparison of a measured value, which has columns, with a limit, which has none."""

    measured: ast.expr
    op: type[ast.cmpop]
    limit: ast.expr

    @classmethod
    def of_part(cls, part: ast.expr) -> Limit | None:
        """Return the parts of such a comparison; None for any other condition."""
        if not isinstance(part, ast.Compare) or type(part.ops[0]) not in _SIGNS:
            return None
        one = cls(part.left, type(part.ops[0]), part.comparators[0])
        if not _names(one.measured):
            one = cls(one.limit, _MIRRORED[one.op], one.measured)
        return one if _names(one.measured) and not _names(one.limit) else None

    def values(self, columns: Columns) -> Any:
        """Return the values that are compared as texts of few digits, rounded to the side that a limit takes.

        Null for one that is missing or not finite.
        """
        values = as_numpy(filters.value(self.measured, columns).cast(pa.float64())).astype(np.float64)
        short = rounded(values, np.ceil if self.op in (ast.Lt, ast.LtE) else np.floor)
        return pa.array(short, mask=~np.isfinite(values)).cast(_TEXT)


def rounded(values: NDArray[np.float64], towards: Callable[[Any], Any]) -> NDArray[np.float64]:
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
    can: NDArray[np.bool_]


def _limits(node: ast.expr, columns: Columns) -> _Taking:
    if isinstance(node, ast.BoolOp):
        inner = [_limits(one, columns) for one in node.values]
        can: Any = np.array([one.can for one in inner])
        as_it_is = can & [as_numpy(one.text.is_null()) for one in inner]
        if isinstance(node.op, ast.Or):
            text = _join_present(*(one.text for one in inner), by=" or ")
            possible, needed = can.any(axis=0), ~as_it_is.any(axis=0)
        else:
            text = _join_present(*(_in_brackets(one.text) for one in inner), by=" and ")
            possible, needed = can.all(axis=0), ~as_it_is.all(axis=0)
        return _Taking(pc.if_else(pa.array(possible & needed), text, None), possible)
    met = filters.holds(node, columns)
    if (one := Limit.of_part(node)) is None:
        return _Taking(pa.nulls(len(met), _TEXT), met)
    sign = "<=" if one.op in (ast.Lt, ast.LtE) else ">="
    text = _join(ast.unparse(one.measured), sign, one.values(columns))
    text = pc.if_else(pa.array(met), None, text)
    return _Taking(text, met | as_numpy(text.is_valid()))


def _join(*parts: Any, by: str = " ") -> Any:
    """Join texts and arrays of texts for each row; null where one is missing."""
    texts = [pa.scalar(part, _TEXT) if isinstance(part, str) else part.cast(_TEXT) for part in (*parts, by)]
    return pc.binary_join_element_wise(*texts)


def _join_present(*parts: Any, by: str) -> Any:
    """Join the texts that a row has; "" where it has none."""
    # Without null_handling="skip", which loses rows that have none.
    present = [_join(by, part, by="") for part in parts]
    texts = pc.binary_join_element_wise(*present, pa.scalar("", _TEXT), null_handling="replace", null_replacement="")
    return pc.utf8_slice_codeunits(texts, len(by))


def _in_brackets(text: Any) -> Any:
    return pc.if_else(pc.match_substring(text, " or "), _join("(", text, ")", by=""), text)


def _detail(part: ast.expr, columns: Columns) -> Any:
    """Return for each row, for people, how it fails a condition."""
    has = [_shown(name, columns[name]) for name in _names(part)]
    all_values = (
        _join(*has, by=", ") if has else pa.array(["no value that it asks for"] * len(columns.rows), type=_TEXT)
    )
    told = _join(f"{text_of(part)}: the clip has", all_values)
    if (one := Limit.of_part(part)) is None:
        return told
    name, against = ast.unparse(one.measured), f"{_SIGNS[_OPPOSITE[one.op]]} {ast.unparse(one.limit)}"
    if isinstance(one.measured, ast.Name):
        return pc.coalesce(_join(name, one.values(columns), against), told)
    return pc.coalesce(_join(_join(name, "is", one.values(columns), against), " (", all_values, ")", by=""), told)


def _shown(name: str, column: Any) -> Any:
    """Return a column's values for people: `height 480`, `codec 'h264'`, `no aes`."""
    if name in TEXTS:
        dots = pc.if_else(pc.greater(pc.utf8_length(column), _SHOWN_LETTERS), "…", "")
        return _join(f"{name} '", pc.utf8_slice_codeunits(column, 0, _SHOWN_LETTERS), dots, "'", by="")
    return pc.coalesce(_join(name, _few_digits(column)), pa.scalar(f"no {name}", _TEXT))


def _few_digits(numbers: Any) -> Any:
    return pa.array(rounded(as_numpy(numbers).astype(np.float64), np.floor), mask=as_numpy(numbers.is_null())).cast(
        _TEXT
    )
