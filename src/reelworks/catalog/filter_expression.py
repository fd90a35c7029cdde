"""A filter's text as a checked expression over catalog columns: a small part of Python, never executed."""

from __future__ import annotations

import ast
import math
import operator
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache, reduce
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from reelworks.core.errors import UserError, nearest

Truth = NDArray[np.bool_]


NUMBERS = (
    "num_frames",
    "height",
    "width",
    "fps",
    "duration_seconds",
    "size_bytes",
    "bit_depth",
    "caption_length",
)


TEXTS = ("kind", "codec", "path", "caption")


KINDS_OF_FILE = ("video", "image")


FUNCTIONS = ("startswith", "contains")


SEARCHED = ("path", "caption", "codec")


class Kind(StrEnum):
    """Kind of a part's values, as errors name it."""

    NUMBER = "a number"
    TEXT = "a text"
    TRUTH = "true or false"


class TextColumn(Protocol):
    """A column of texts, searched as a whole."""

    def is_in(self, texts: Sequence[str]) -> Truth:
        """True where the text is one of `texts`."""

    def startswith(self, text: str) -> Truth:
        """True where the text begins with another."""

    def contains(self, text: str) -> Truth:
        """True where another text stands somewhere in it."""


class Columns(Protocol):
    """Columns of a catalog by name."""

    def numbers(self, name: str) -> NDArray[np.float64]:
        """One of `NUMBERS`, or a score: NaN where a row has none."""

    def texts(self, name: str) -> TextColumn:
        """One of `TEXTS`."""


@dataclass(frozen=True)
class Part:
    """A checked piece of an expression.

    Attributes:
        kind: What its values are.
        value: Computes them.
        constant: Its value, if it is written out.
        column: Its name, if it is a column.
        false: Of a truth, computes where it is known not to hold: neither it nor `value` is true of a
            comparison with a number that is not there.
    """

    kind: Kind
    value: Callable[[Columns], Any]
    constant: float | str | None = None
    column: str | None = None
    false: Callable[[Columns], Any] | None = None


@dataclass(frozen=True)
class Expression:
    """A checked filter.

    Attributes:
        text: As the recipe has it.
        names: Columns that it looks at, in the order in which they first stand there.
    """

    text: str
    names: tuple[str, ...]
    _truth: Callable[[Columns], Any]

    def evaluate(self, columns: Columns, num_rows: int) -> Truth:
        """True for the rows that the filter keeps."""
        with np.errstate(all="ignore"):  # a division by 0 is an answer here
            return np.array(np.broadcast_to(self._truth(columns), num_rows), dtype=np.bool_)


_FORMS = (
    'use comparisons, and, or, not, + - * /, in [...], startswith(path, "a/") and contains(caption, "cat")'
)


_DEEPEST = 100  # parts inside parts; Python's own limit would come as a crash


@lru_cache(maxsize=64)
def parse(
    text: str, field: str = "dataset.filter", scores: frozenset[str] | None = frozenset()
) -> Expression:
    """Read and check a filter.

    Args:
        text: As the recipe has it.
        field: Key to name in errors.
        scores: Scores that it may name; None where any unknown name may be one.

    Raises:
        UserError: It is no expression, or a part of it is unknown or of the wrong kind; names the part.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # Python only warns of a backslash that means nothing
            tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        told = error.msg if isinstance(error, SyntaxError) else "too long or not text"
        raise UserError(
            f"not an expression: {told}",
            code="filter-not-an-expression",
            field=field,
            value=text,
            remedy=_FORMS,
        ) from None
    reader = _Reader(text, field, scores)
    whole = reader.truth(tree.body)
    return Expression(text, tuple(dict.fromkeys(reader.names)), whole.value)


_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: lambda one, other: (one != other) & _known(one) & _known(other),
}


_OPPOSITES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}


def _known(number: Any) -> Any:
    return np.logical_not(np.isnan(number))


class _Reader:
    """Turns a syntax tree into parts; whatever is not listed here is refused."""

    def __init__(self, text: str, field: str, scores: frozenset[str] | None) -> None:
        self.text, self.field, self.scores = text, field, scores
        self.names: list[str] = []
        self.depth = 0

    def truth(self, node: ast.expr) -> Part:
        return self._of_kind(node, Kind.TRUTH)

    def _of_kind(self, node: ast.expr, kind: Kind) -> Part:
        part = self._part(node)
        if part.kind != kind:
            remedy = "compare it, as in height >= 480" if kind == Kind.TRUTH else _FORMS
            self._refuse(node, f"is {part.kind}, and {kind} is needed there", remedy)
        return part

    def _part(self, node: ast.expr) -> Part:
        self.depth += 1
        if self.depth > _DEEPEST:
            self._refuse(node, "is nested too deeply", "write a shorter filter")
        part = self._read(node)
        self.depth -= 1
        return part

    def _read(self, node: ast.expr) -> Part:
        match node:
            case ast.Name(id=name):
                return self._column(node, name)
            case ast.Constant(value=value):
                return self._constant(node, value)
            case ast.BoolOp(op=op, values=values):
                return _joined(isinstance(op, ast.And), [self.truth(value) for value in values])
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return _negated(self.truth(operand))
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() as op, operand=operand):
                return self._signed(-1.0 if isinstance(op, ast.USub) else 1.0, operand)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                sides = [self._of_kind(side, Kind.NUMBER) for side in (left, right)]
                return Part(Kind.NUMBER, _of_two(_ARITHMETIC[type(op)], *sides))
            case ast.Compare():
                return self._comparison(node)
            case ast.Call():
                return self._search(node)
        self._refuse(node, "is of a form that filters do not have", _FORMS)

    def _column(self, node: ast.expr, name: str) -> Part:
        self.names.append(name)
        if name in NUMBERS:
            return Part(Kind.NUMBER, lambda columns: columns.numbers(name), column=name)
        if name in TEXTS:
            return Part(Kind.TEXT, lambda columns: columns.texts(name), column=name)
        if self.scores is None or name in self.scores:
            return Part(Kind.NUMBER, lambda columns: columns.numbers(name), column=name)
        known = (*NUMBERS, *TEXTS, *self.scores)
        guess = nearest(name, known)
        listed = "" if guess.startswith("known") else f" (known: {', '.join(sorted(known))})"
        self._refuse(node, "is not a column", guess + listed)

    def _constant(self, node: ast.expr, value: object) -> Part:
        if isinstance(value, str):
            if any(0xD800 <= ord(letter) < 0xE000 for letter in value):
                self._refuse(node, "holds half a letter", "write the letter itself")
            return Part(Kind.TEXT, lambda _: value, constant=value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._refuse(node, "is neither a number nor a text", _FORMS)
        try:
            number = np.float64(value)
        except OverflowError:
            number = np.float64(math.inf)
        if not np.isfinite(number):
            self._refuse(node, "is too large a number", "use one below 1e308")
        return Part(Kind.NUMBER, lambda _: number, constant=float(number))

    def _signed(self, sign: float, node: ast.expr) -> Part:
        inner = self._of_kind(node, Kind.NUMBER)
        constant = sign * inner.constant if isinstance(inner.constant, float) else None
        return Part(Kind.NUMBER, lambda columns: sign * inner.value(columns), constant)

    def _comparison(self, node: ast.Compare) -> Part:
        """A chain such as 480 <= height < 1080: all of its links hold."""
        sides = [node.left, *node.comparators]
        links = zip(sides, node.ops, sides[1:], strict=False)
        return _joined(True, [self._link(*link) for link in links])

    def _link(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> Part:
        if isinstance(op, ast.In | ast.NotIn):
            inside = self._membership(left, right)
            return _negated(inside) if isinstance(op, ast.NotIn) else inside
        if type(op) not in _COMPARISONS:
            self._refuse(right, 'is compared with "is"', "write == or !=")
        one = self._part(left)
        other = self._of_kind(right, one.kind)
        if one.kind == Kind.NUMBER:
            true, false = _COMPARISONS[type(op)], _COMPARISONS[_OPPOSITES[type(op)]]
            return Part(Kind.TRUTH, _of_two(true, one, other), false=_of_two(false, one, other))
        if one.kind == Kind.TRUTH or not isinstance(op, ast.Eq | ast.NotEq):
            self._refuse(left, f"is {one.kind}, which has no order", "join with and, or, not; == suits texts")
        column, word = (one, other) if one.column else (other, one)
        if column.column is None or not isinstance(word.constant, str):
            self._refuse(left, "is no column compared with a text", "write e.g. codec == 'h264'")
        equal = self._one_of(right, column, [word.constant])
        return _negated(equal) if isinstance(op, ast.NotEq) else equal

    def _membership(self, left: ast.expr, right: ast.expr) -> Part:
        if not isinstance(right, ast.List | ast.Tuple) or not right.elts:
            self._refuse(right, "is not a list of values", "write e.g. height in [480, 720]; or use contains")
        one = self._part(left)
        values = [self._of_kind(item, one.kind).constant for item in right.elts]
        if None in values:
            self._refuse(right, "is not a list of values", "write out numbers or texts in it")
        if one.kind == Kind.NUMBER:
            numbers = np.array(values, dtype=np.float64)
            return Part(
                Kind.TRUTH,
                lambda columns: np.isin(one.value(columns), numbers),
                false=lambda columns: (
                    np.isin(one.value(columns), numbers, invert=True) & _known(one.value(columns))
                ),
            )
        if one.column is None:
            self._refuse(left, "is not a column", "write e.g. codec in ['h264', 'hevc']")
        return self._one_of(right, one, [str(value) for value in values])

    def _one_of(self, node: ast.expr, column: Part, words: list[str]) -> Part:
        for word in words if column.column == "kind" else ():
            if word not in KINDS_OF_FILE:
                self._refuse(node, f'has "{word}", which is no kind of file', nearest(word, KINDS_OF_FILE))
        return _of_texts(lambda columns: column.value(columns).is_in(words))

    def _search(self, node: ast.Call) -> Part:
        name = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func)
        if name not in FUNCTIONS:
            self._refuse(node.func, "is not a function of filters", nearest(name, FUNCTIONS))
        usage = f'write {name}(path, "text"), with {", ".join(SEARCHED[:-1])} or {SEARCHED[-1]}'
        if len(node.args) != 2 or node.keywords:
            self._refuse(node, "takes a column and a text", usage)
        column, word = (self._of_kind(argument, Kind.TEXT) for argument in node.args)
        if column.column not in SEARCHED or not isinstance(word.constant, str):
            self._refuse(node, "takes a column and a text", usage)
        constant = word.constant
        return _of_texts(lambda columns: getattr(column.value(columns), name)(constant))

    def _refuse(self, node: ast.expr, problem: str, remedy: str) -> NoReturn:
        part = ast.unparse(node) if self.depth <= _DEEPEST else "a part"
        raise UserError(
            f"`{part}` {problem}", code="filter-invalid", field=self.field, value=self.text, remedy=remedy
        )


def _of_two(function: Callable[[Any, Any], Any], one: Part, other: Part) -> Callable[[Columns], Any]:
    return lambda columns: function(one.value(columns), other.value(columns))


def _of_texts(value: Callable[[Columns], Any]) -> Part:
    """A truth that is known of every row."""
    return Part(Kind.TRUTH, value, false=lambda columns: np.logical_not(value(columns)))


def _joined(all_of_them: bool, parts: list[Part]) -> Part:
    joins = (np.logical_and, np.logical_or) if all_of_them else (np.logical_or, np.logical_and)
    true, false = [part.value for part in parts], [_negated(part).value for part in parts]
    return Part(
        Kind.TRUTH,
        lambda columns: reduce(joins[0], (value(columns) for value in true)),
        false=lambda columns: reduce(joins[1], (value(columns) for value in false)),
    )


def _negated(part: Part) -> Part:
    assert part.false is not None
    return Part(Kind.TRUTH, part.false, false=part.value)
