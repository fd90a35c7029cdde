"""Parse and check filters: expressions over catalog columns in a small subset of Python, never executed."""

from __future__ import annotations

import ast
import math
import warnings
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple, NoReturn

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


class Expression(NamedTuple):
    """A checked filter: the columns that it uses, in order of first use, and its syntax tree."""

    names: tuple[str, ...]
    tree: ast.expr


_FORMS = 'use comparisons, and, or, not, + - * /, in [...], startswith(path, "a/") and contains(caption, "cat")'
_DEEPEST = 100  # nested parts; beyond Python's own limit it would crash


@lru_cache(maxsize=64)
def parse(text: str, scores: frozenset[str] | None = frozenset()) -> Expression:
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
    checker = _Checker(text, scores)
    checker.expect(tree.body, ValueKind.TRUTH)
    return Expression(tuple(dict.fromkeys(checker.names)), tree.body)


def constant(node: ast.expr) -> float | str | None:
    """Return the value of a literal number or text, None for anything else."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as op, operand=operand):
            inner = constant(operand)
            if isinstance(inner, float):
                return -inner if isinstance(op, ast.USub) else inner
    return None


class _Checker:
    """Finds the kind of each part of a syntax tree, and refuses all other forms."""

    def __init__(self, text: str, scores: frozenset[str] | None) -> None:
        self.text, self.scores = text, scores
        self.names: list[str] = []
        self.depth = 0

    def expect(self, node: ast.expr, kind: ValueKind) -> None:
        actual = self._kind(node)
        if actual != kind:
            remedy = "compare it, as in height >= 480" if kind == ValueKind.TRUTH else _FORMS
            self._refuse(node, f"is {actual}, but {kind} is needed", remedy)

    def _kind(self, node: ast.expr) -> ValueKind:
        self.depth += 1
        if self.depth > _DEEPEST:
            self._refuse(node, "is nested too deeply", "write a shorter filter")
        kind = self._kind_of_form(node)
        self.depth -= 1
        return kind

    def _kind_of_form(self, node: ast.expr) -> ValueKind:
        match node:
            case ast.Name(id=name):
                return self._column(node, name)
            case ast.Constant(value=value):
                return self._constant(node, value)
            case ast.BoolOp(values=parts):
                for part in parts:
                    self.expect(part, ValueKind.TRUTH)
                return ValueKind.TRUTH
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self.expect(operand, ValueKind.TRUTH)
                return ValueKind.TRUTH
            case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
                self.expect(operand, ValueKind.NUMBER)
                return ValueKind.NUMBER
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div(), right=right):
                self.expect(left, ValueKind.NUMBER)
                self.expect(right, ValueKind.NUMBER)
                return ValueKind.NUMBER
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                for link in zip([left, *comparators], ops, comparators, strict=False):
                    self._link(*link)
                return ValueKind.TRUTH
            case ast.Call():
                self._search(node)
                return ValueKind.TRUTH
        self._refuse(node, "is not supported in filters", _FORMS)

    def _column(self, node: ast.expr, name: str) -> ValueKind:
        self.names.append(name)
        if name in TEXTS:
            return ValueKind.TEXT
        if name in NUMBERS or self.scores is None or name in self.scores:
            return ValueKind.NUMBER
        known = (*NUMBERS, *TEXTS, *self.scores)
        guess = nearest(name, known)
        listed = "" if guess.startswith("known") else f" (known: {', '.join(sorted(known))})"
        self._refuse(node, "is not a column", guess + listed)

    def _constant(self, node: ast.expr, value: object) -> ValueKind:
        if isinstance(value, str):
            if any(0xD800 <= ord(letter) < 0xE000 for letter in value):
                self._refuse(node, "contains half of a surrogate pair", "write the character itself")
            return ValueKind.TEXT
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._refuse(node, "is neither a number nor text", _FORMS)
        try:
            finite = math.isfinite(value)
        except OverflowError:
            finite = False
        if not finite:
            self._refuse(node, "is too large a number", "use one below 1e308")
        return ValueKind.NUMBER

    def _link(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> None:
        if isinstance(op, ast.In | ast.NotIn):
            return self._membership(left, right)
        if isinstance(op, ast.Is | ast.IsNot):
            self._refuse(right, 'is compared with "is"', "write == or !=")
        kind = self._kind(left)
        self.expect(right, kind)
        if kind == ValueKind.NUMBER:
            return None
        if kind == ValueKind.TRUTH or not isinstance(op, ast.Eq | ast.NotEq):
            self._refuse(left, f"is {kind}, which has no order", "compare texts with ==")
        if sorted(isinstance(side, ast.Name) for side in (left, right)) != [False, True]:
            self._refuse(left, "is not a column compared with a text", "write e.g. codec == 'h264'")
        column, word = (left, right) if isinstance(left, ast.Name) else (right, left)
        return self._words(right, column, [word])

    def _membership(self, left: ast.expr, right: ast.expr) -> None:
        if not isinstance(right, ast.List | ast.Tuple) or not right.elts:
            self._refuse(right, "is not a list of values", "write e.g. height in [480, 720]; or use contains")
        kind = self._kind(left)
        for item in right.elts:
            self.expect(item, kind)
        if any(constant(item) is None for item in right.elts):
            self._refuse(right, "is not a list of values", "write out numbers or texts in it")
        if kind == ValueKind.TEXT:
            if not isinstance(left, ast.Name):
                self._refuse(left, "is not a column", "write e.g. codec in ['h264', 'hevc']")
            self._words(right, left, right.elts)

    def _words(self, node: ast.expr, column: ast.expr, words: list[ast.expr]) -> None:
        for word in map(constant, words) if ast.unparse(column) == "kind" else ():
            if word not in KINDS_OF_FILE:
                self._refuse(node, f'has "{word}", which is not a kind of file', nearest(str(word), KINDS_OF_FILE))

    def _search(self, node: ast.Call) -> None:
        name = ast.unparse(node.func)
        if name not in FUNCTIONS:
            self._refuse(node.func, "is not a filter function", nearest(name, FUNCTIONS))
        usage = f'write {name}(path, "text"), with {", ".join(SEARCHED[:-1])} or {SEARCHED[-1]}'
        if len(node.args) != 2 or node.keywords:
            self._refuse(node, "needs a column and a text", usage)
        column, word = node.args
        self.expect(column, ValueKind.TEXT)
        self.expect(word, ValueKind.TEXT)
        if ast.unparse(column) not in SEARCHED or constant(word) is None:
            self._refuse(node, "needs a column and a text", usage)

    def _refuse(self, node: ast.expr, problem: str, remedy: str) -> NoReturn:
        part = ast.unparse(node) if self.depth <= _DEEPEST else "a part"
        raise UserError(
            f"`{part}` {problem}", code="filter-invalid", field="dataset.filter", value=self.text, remedy=remedy
        )
