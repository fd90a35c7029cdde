"""User-facing errors, which name the field, its value and the remedy."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any

_MAX_NAMES, _MAX_LETTERS = 3, 200
_LONG_WORD = re.compile(r"\S{1000,}")  # longer than any path


class CommonError(Exception):
    """An error that all ranks raise alike if work fails with it on one of them; it can be pickled."""


class UserError(CommonError, ValueError):
    """Wrong input that the user can correct; the command line prints it without a traceback and exits with code 2.

    Args:
        problem: What is wrong, in one sentence.
        code: Stable name of the error, as docs/reference/errors.md lists it; the sentence may change.
        field: The recipe key, option, argument or file that holds the value.
        remedy: What the user can type, change or look at next.
    """

    def __init__(self, problem: str, *, code: str, field: str | None = None, value: object = None, remedy: str) -> None:
        self.code, self.value, self.problem, self.remedy = code, value, problem, remedy
        super().__init__()
        self.reword(field=field)

    def reword(self, *, field: str | None, value: object = None, problem: str = "", remedy: str = "") -> None:
        """Tell the same mistake in other words, as far as they are given, or of another field and value."""
        problem, remedy = problem or self.problem, remedy or self.remedy
        self.value = self.value if value is None else value
        if isinstance(self.value, str) and len(self.value) > _MAX_LETTERS:  # which is not repeated whole anywhere
            problem, remedy = (text.replace(self.value, shortened(self.value)) for text in (problem, remedy))
        problem, remedy = (_LONG_WORD.sub(lambda word: shortened(word[0]), text) for text in (problem, remedy))
        field = None if field is None else shortened(field)
        self.field, self.problem, self.remedy = field, problem, remedy
        where = "" if field is None else f"{field}: "
        if field is not None and self.value is not None:
            where = f"{field} = {shown(self.value)}: "
        self.args = (f"{where}{problem}\n  remedy: {remedy}",)

    def to_json(self) -> dict[str, Any]:
        """Return the parts of the error as plain values; its value is text that can be encoded."""
        value = None if self.value is None else str(self.value).encode(errors="replace").decode()
        return {"problem": self.problem, "code": self.code, "field": self.field, "value": value, "remedy": self.remedy}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the arguments of `__init__`, which differ between subclasses: errors come from other processes."""
        return type(self).__new__, (type(self), *self.args), self.__dict__


def shown(value: object) -> str:
    """Return a value as a message shows it: as Python writes it, in 200 characters at most."""
    try:
        return shortened(repr(value))
    except ValueError:  # a whole number of thousands of digits
        return f"a value of type {type(value).__name__}"


def shortened(text: str) -> str:
    """Return a text, or its beginning and end if it has more than 200 characters."""
    if len(text) <= _MAX_LETTERS:
        return text
    half = _MAX_LETTERS // 2 - 20
    return f"{text[:half]} … {text[-half:]} ({len(text):,} characters)"


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a remedy for an unknown word: `did you mean "x"?` with the closest known word, or all known words."""
    known = sorted(known)
    folded = {name.casefold(): name for name in known}
    close = difflib.get_close_matches(word.casefold(), folded, n=1, cutoff=0.5)
    return f'did you mean "{folded[close[0]]}"?' if close else "known: " + ", ".join(known)


def first_few(names: Sequence[str]) -> str:
    """Join the first three names of a list, and say how many more there are."""
    more = f", and {len(names) - _MAX_NAMES:,} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more
