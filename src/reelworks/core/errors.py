"""Errors for people: which field, which value, what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

_SHOWN = 3


class UserError(ValueError):
    """Input that a person can mend.

    The command line prints it without a traceback and leaves with exit code 2.

    Args:
        problem: What is wrong, in one sentence.
        code: Stable name of the mistake, as docs/reference/errors.md lists it; the sentence may change.
        field: The recipe key, option or file that holds the value.
        value: The offending value as the user wrote it.
        remedy: What to type, change or look at next.
    """

    def __init__(
        self, problem: str, *, code: str, field: str | None = None, value: object = None, remedy: str
    ) -> None:
        self.problem, self.code, self.remedy = problem, code, remedy
        self.field, self.value = field, value
        where = "" if field is None else f"{field} = {value!r}: " if value is not None else f"{field}: "
        super().__init__(f"{where}{problem}\n  remedy: {remedy}")


def nearest(word: str, known: Iterable[str]) -> str:
    """Name the known word most like `word`, as a phrase for a remedy: `did you mean "x"?`, or the list."""
    known = sorted(known)
    folded = {name.casefold(): name for name in known}
    close = difflib.get_close_matches(word.casefold(), folded, n=1, cutoff=0.5)
    return f'did you mean "{folded[close[0]]}"?' if close else "known: " + ", ".join(known)


def first_few(names: Sequence[str]) -> str:
    """The first names of a list, which tell what is wrong, and how many more there are."""
    more = f", and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
