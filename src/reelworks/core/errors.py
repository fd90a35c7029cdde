"""User-facing errors, which name the field, its value and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

_MAX_NAMES = 3


class UserError(ValueError):
    """Wrong input that the user can correct; the command line prints it without a traceback and exits with code 2.

    Args:
        problem: What is wrong, in one sentence.
        code: Stable name of the error, as docs/reference/errors.md lists it; the sentence may change.
        field: The recipe key, option or file that holds the value.
        remedy: What the user can type, change or look at next.
    """

    def __init__(self, problem: str, *, code: str, field: str | None = None, value: object = None, remedy: str) -> None:
        self.problem, self.code, self.remedy = problem, code, remedy
        self.field, self.value = field, value
        where = "" if field is None else f"{field} = {value!r}: " if value is not None else f"{field}: "
        super().__init__(f"{where}{problem}\n  remedy: {remedy}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the arguments of `__init__`, which differ between subclasses: errors come from other processes."""
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[UserError], args: tuple[Any, ...], attributes: dict[str, Any]) -> UserError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


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
