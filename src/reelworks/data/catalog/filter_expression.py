"""Filters as small typed trees, read from a subset of Python that is checked and never executed.

A filter is a condition: comparisons and searches of texts, joined by `and` and `or`. It is brought to one form when it is
read: `not` is moved to the comparisons and stays before searches alone, and chains such as `480 <= height < 720` are divided,
so that each part of `and` is a filter again. Rows are tried by `query.filters`.
"""

from __future__ import annotations

import ast
import math
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any, Literal, NamedTuple, NoReturn, TypeAlias

from reelworks.core.errors import UserError, nearest

NUMBERS = ("num_frames", "height", "width", "fps", "duration_seconds", "size_bytes", "bit_depth", "caption_length")
TEXTS = ("kind", "codec", "path", "caption")
KINDS_OF_FILE = ("video", "image")
FUNCTIONS = ("startswith", "contains")
SEARCHED = ("path", "caption", "codec")


class ValueKind(StrEnum):
    """Kind of value of a part of a filter, as error messages name it."""

    NUMBER = "a number"
    TEXT = "a text"
    TRUTH = "true or false"


@dataclass(frozen=True)
class Constant:
    """A number or a text as written; on the right of `in`, all values of the list."""

    value: Any  # float or str; a tuple of them for a list
    text: str


@dataclass(frozen=True)
class ColumnName:
    """The value that a clip has in a column of the catalog, or as a score."""

    text: str


@dataclass(frozen=True)
class Calculation:
    """One of `+ - * /` between two numbers, or `+ -` before one."""

    sign: str
    operands: tuple[Value, ...]
    text: str


@dataclass(frozen=True)
class Relation:
    """A comparison of two values by one of `< <= > >= == !=`, or of a value with a list by `in` or `not in`."""

    left: Value
    sign: str
    right: Value

    @property
    def text(self) -> str:
        """The comparison as a filter."""
        return f"{self.left.text} {self.sign} {self.right.text}"


@dataclass(frozen=True)
class Search:
    """A search for a word in a column of texts."""

    function: str
    column: ColumnName
    word: Constant

    @property
    def text(self) -> str:
        """The search as a filter."""
        return f"{self.function}({self.column.text}, {self.word.text})"


@dataclass(frozen=True)
class Negation:
    """The opposite of a search."""

    search: Search

    @property
    def text(self) -> str:
        """The opposite as a filter."""
        return f"not {self.search.text}"


@dataclass(frozen=True)
class Joined:
    """Conditions that are joined by `and` or `or`, none of which is joined by the same word itself."""

    by: Literal["and", "or"]
    parts: tuple[Condition, ...]

    @property
    def text(self) -> str:
        """The conditions as a filter."""
        inner = (
            f"({part.text})" if self.by == "and" and isinstance(part, Joined) else part.text for part in self.parts
        )
        return f" {self.by} ".join(inner)


Value: TypeAlias = Constant | ColumnName | Calculation
Condition: TypeAlias = Relation | Search | Negation | Joined

OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "==", "in": "not in", "not in": "in"}
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_SIGNS: dict[type[ast.AST], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.In: "in",
    ast.NotIn: "not in",
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.UAdd: "+",
    ast.USub: "-",
}
_FORMS = 'use comparisons, and, or, not, + - * /, in [...], startswith(path, "a/") and contains(caption, "cat")'
_DEEPEST = 100  # nested parts; beyond Python's own limit it would crash


@lru_cache(maxsize=64)
def parse(text: str, scores: frozenset[str] | None = frozenset()) -> Condition:
    """Read and check a filter; the error for a wrong one names the part that is unknown or of the wrong kind.

    `scores` are those that it may use; None if any unknown name may be a score.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # Python only warns of an invalid escape sequence
            tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else "too long or not text"
        raise UserError(
            f"the filter is not an expression: {reason}",
            code="filter-not-an-expression",
            field="dataset.filter",
            value=text,
            remedy=_FORMS,
        ) from None
    condition: Condition = _FilterReader(text, scores).expect(tree.body, ValueKind.TRUTH)
    return condition


def joined(parts: Sequence[Condition], by: Literal["and", "or"] = "and") -> Condition:
    """Join conditions, as one that has no part joined by the same word."""
    flat: list[Condition] = []
    for part in parts:
        flat += part.parts if isinstance(part, Joined) and part.by == by else [part]
    return flat[0] if len(flat) == 1 else Joined(by, tuple(flat))


def parts_of(condition: Condition) -> tuple[Condition, ...]:
    """Return the conditions that a filter joins by `and`: itself if there is one alone."""
    return condition.parts if isinstance(condition, Joined) and condition.by == "and" else (condition,)


def names_in(part: Condition | Value) -> list[str]:
    """Return the columns that a part of a filter uses, each once, those first that are nested the least."""
    queue = [part]
    for one in queue:
        match one:
            case Joined(_, inside) | Calculation(_, inside):
                queue += inside
            case Relation(left, _, right):
                queue += left, right
            case Search(_, inside) | Negation(inside):
                queue.append(inside)
    return list(dict.fromkeys(one.text for one in queue if isinstance(one, ColumnName)))


class Limit(NamedTuple):
    """A comparison of a measured value, which has columns, with a limit, which has none."""

    measured: Value
    sign: str
    limit: Value

    @classmethod
    def of_part(cls, part: Condition) -> Limit | None:
        """Return the parts of such a comparison; None for any other condition."""
        if not isinstance(part, Relation) or part.sign not in _MIRRORED:
            return None
        one = cls(part.left, part.sign, part.right)
        if not names_in(one.measured):
            one = cls(one.limit, _MIRRORED[one.sign], one.measured)
        return one if names_in(one.measured) and not names_in(one.limit) else None

    @property
    def is_most(self) -> bool:
        """Whether smaller values pass."""
        return self.sign in ("<", "<=")


@dataclass(frozen=True)
class ColumnRange:
    """Limits of a column, None for none; `text` is the part of a filter that they were read from."""

    least: float | None = None
    most: float | None = None
    text: str = ""
    above: bool = False  # whether `least` itself does not pass, as of `aes > 4.5`; and `most`
    below: bool = False

    def ends_of(self, former: ColumnRange) -> ColumnRange:
        """Return the limits with the ends of former ones where they are the same."""
        return replace(
            self, above=former.above and self.least == former.least, below=former.below and self.most == former.most
        )

    def expression(self, name: str) -> str:
        """Return the limits as a filter of a column; "" if there is none."""
        least = [] if self.least is None else [f"{name} >{'=' * (not self.above)} {_number(self.least)}"]
        most = [] if self.most is None else [f"{name} <{'=' * (not self.below)} {_number(self.most)}"]
        return " and ".join([*least, *most])


def _number(value: float) -> str:
    return short if float(short := f"{value:.12g}") == value else repr(value)


def divide(text: str | None, names: Collection[str] | None = None) -> tuple[dict[str, ColumnRange], str | None]:
    """Return the limits of a filter on single columns, of all or of some names, and its other parts, None if it has none."""
    ranges: dict[str, ColumnRange] = {}
    others: list[Condition] = []
    for part in parts_of(parse(text, scores=None)) if text else ():
        limit = Limit.of_part(part)
        if (
            limit is None
            or not isinstance(limit.measured, ColumnName)
            or not isinstance(limit.limit, Constant)
            or (names is not None and limit.measured.text not in names)
        ):
            others.append(part)
            continue
        name, bound = limit.measured.text, limit.limit.value
        former = ranges.get(name, ColumnRange())
        open_ = limit.sign in ("<", ">")
        if limit.is_most and (former.most is None or (bound, not open_) < (former.most, not former.below)):
            former = replace(former, most=bound, below=open_)
        elif not limit.is_most and (former.least is None or (bound, open_) > (former.least, former.above)):
            former = replace(former, least=bound, above=open_)
        ranges[name] = replace(former, text=" and ".join(filter(None, [former.text, part.text])))
    return ranges, joined(others).text if others else None


def with_ranges(text: str | None, ranges: Mapping[str, ColumnRange]) -> str | None:
    """Return a filter with other limits on some columns; what else it asks for stays. None if it asks for nothing."""
    former, rest = divide(text)
    is_or = rest is not None and isinstance(condition := parse(rest, scores=None), Joined) and condition.by == "or"
    kept = [] if rest is None else [f"({rest})" if is_or else rest]
    for name in dict.fromkeys([*former, *ranges]):
        was, now = former.get(name, ColumnRange()), ranges.get(name, former.get(name, ColumnRange()))
        same = (was.least, was.most) == (now.least, now.most)
        kept.append(was.text if same else now.ends_of(was).expression(name))
    return " and ".join(filter(None, kept)) or None


class _FilterReader:
    """Reads a syntax tree of Python into a filter, and refuses all forms that filters do not have."""

    def __init__(self, text: str, scores: frozenset[str] | None) -> None:
        self.text, self.scores = text, scores
        self.depth = 0

    def expect(self, node: ast.expr, kind: ValueKind, *, negated: bool = False) -> Any:
        """Read a part that must be of a kind; of what is true or false, its opposite if `negated`."""
        part = self._part(node, negated)
        if _kind(part) != kind:
            remedy = "compare it, as in height >= 480" if kind == ValueKind.TRUTH else _FORMS
            self._refuse(node, f"is {_kind(part)}, but {kind} is needed", remedy)
        return part

    def _part(self, node: ast.expr, negated: bool = False) -> Any:
        self.depth += 1
        if self.depth > _DEEPEST:
            self._refuse(node, "is nested too deeply", "write a shorter filter")
        part = self._form(node, negated)
        self.depth -= 1
        return part

    def _form(self, node: ast.expr, negated: bool) -> Condition | Value:
        match node:
            case ast.Name(id=name):
                return self._column(node, name)
            case ast.Constant(value=value):
                return self._constant(node, value)
            case ast.BoolOp(op=op, values=parts):
                is_and = isinstance(op, ast.And) != negated
                conditions = [self.expect(part, ValueKind.TRUTH, negated=negated) for part in parts]
                return joined(conditions, "and" if is_and else "or")
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                condition: Condition = self.expect(operand, ValueKind.TRUTH, negated=not negated)
                return condition
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() as op, operand=operand):
                number = self.expect(operand, ValueKind.NUMBER)
                if isinstance(number, Constant):
                    return Constant(-number.value if isinstance(op, ast.USub) else number.value, ast.unparse(node))
                return Calculation(_SIGNS[type(op)], (number,), ast.unparse(node))
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div() as op, right=right):
                numbers = self.expect(left, ValueKind.NUMBER), self.expect(right, ValueKind.NUMBER)
                return Calculation(_SIGNS[type(op)], numbers, ast.unparse(node))
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                links = zip([left, *comparators], ops, comparators, strict=False)
                return joined([self._relation(*link, negated) for link in links], "or" if negated else "and")
            case ast.Call():
                search = self._search(node)
                return Negation(search) if negated else search
        self._refuse(node, "is not supported in filters", _FORMS)

    def _column(self, node: ast.expr, name: str) -> ColumnName:
        if name not in (*NUMBERS, *TEXTS) and self.scores is not None and name not in self.scores:
            known = (*NUMBERS, *TEXTS, *self.scores)
            guess = nearest(name, known)
            listed = "" if guess.startswith("known") else f" (known: {', '.join(sorted(known))})"
            self._refuse(node, "is not a column", guess + listed)
        return ColumnName(name)

    def _constant(self, node: ast.expr, value: object) -> Constant:
        if isinstance(value, str):
            if any(0xD800 <= ord(letter) < 0xE000 for letter in value):
                self._refuse(node, "contains half of a surrogate pair", "write the character itself")
            return Constant(value, ast.unparse(node))
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._refuse(node, "is neither a number nor text", _FORMS)
        with suppress(OverflowError):
            if math.isfinite(value):
                return Constant(float(value), ast.unparse(node))
        self._refuse(node, "is too large a number", "use one below 1e308")

    def _relation(self, left: ast.expr, op: ast.cmpop, right: ast.expr, negated: bool) -> Relation:
        if isinstance(op, ast.Is | ast.IsNot):
            self._refuse(right, 'is compared with "is"', "write == or !=")
        sign = _SIGNS[type(op)]
        first, second = (self._membership if sign in ("in", "not in") else self._comparison)(left, sign, right)
        return Relation(first, OPPOSITE[sign] if negated else sign, second)

    def _comparison(self, left: ast.expr, sign: str, right: ast.expr) -> tuple[Value, Value]:
        first = self._part(left)
        kind = _kind(first)
        second = self.expect(right, kind)
        if kind == ValueKind.TRUTH or (kind == ValueKind.TEXT and sign not in ("==", "!=")):
            self._refuse(left, f"is {kind}, which has no order", "compare texts with ==")
        if kind == ValueKind.TEXT:
            if isinstance(first, ColumnName) == isinstance(second, ColumnName):
                self._refuse(left, "is not a column compared with a text", "write e.g. codec == 'h264'")
            column, word = (first, second) if isinstance(first, ColumnName) else (second, first)
            self._check_words(right, column, [word.value])
        return first, second

    def _membership(self, left: ast.expr, _: str, right: ast.expr) -> tuple[Value, Constant]:
        if not isinstance(right, ast.List | ast.Tuple) or not right.elts:
            self._refuse(right, "is not a list of values", "write e.g. height in [480, 720]; or use contains")
        value = self._part(left)
        kind = _kind(value)
        items = [self.expect(item, kind) for item in right.elts]
        if not all(isinstance(item, Constant) for item in items):
            self._refuse(right, "is not a list of values", "write out numbers or texts in it")
        values = tuple(item.value for item in items)
        if kind == ValueKind.TEXT:
            if not isinstance(value, ColumnName):
                self._refuse(left, "is not a column", "write e.g. codec in ['h264', 'hevc']")
            self._check_words(right, value, values)
        return value, Constant(values, ast.unparse(right))

    def _check_words(self, node: ast.expr, column: ColumnName, words: Iterable[str]) -> None:
        for word in words if column.text == "kind" else ():
            if word not in KINDS_OF_FILE:
                self._refuse(node, f'has "{word}", which is not a kind of file', nearest(word, KINDS_OF_FILE))

    def _search(self, node: ast.Call) -> Search:
        name = ast.unparse(node.func)
        if name not in FUNCTIONS:
            self._refuse(node.func, "is not a filter function", nearest(name, FUNCTIONS))
        usage = f'write {name}(path, "text"), with {", ".join(SEARCHED[:-1])} or {SEARCHED[-1]}'
        if len(node.args) != 2 or node.keywords:
            self._refuse(node, "needs a column and a text", usage)
        column, word = (self.expect(argument, ValueKind.TEXT) for argument in node.args)
        if column.text not in SEARCHED or not isinstance(word, Constant):
            self._refuse(node, "needs a column and a text", usage)
        return Search(name, column, word)

    def _refuse(self, node: ast.expr, problem: str, remedy: str) -> NoReturn:
        part = ast.unparse(node) if self.depth <= _DEEPEST else "a part"
        raise UserError(
            f"`{part}` {problem}", code="filter-invalid", field="dataset.filter", value=self.text, remedy=remedy
        )


def _kind(part: Condition | Value) -> ValueKind:
    match part:
        case Constant(value=str()):
            return ValueKind.TEXT
        case ColumnName(name):
            return ValueKind.TEXT if name in TEXTS else ValueKind.NUMBER
        case Constant() | Calculation():
            return ValueKind.NUMBER
    return ValueKind.TRUTH
