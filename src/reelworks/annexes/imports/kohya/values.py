"""Rules for values that strangers write: numbers within bounds, and switches."""

from __future__ import annotations

import math
from typing import Any

from reelworks.annexes.imports import rules
from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.rules import Fate, Outcome, Rule


def number_of(value: Any) -> float:
    """Return a finite number, also one that is written as text; raises `ValueError` or `TypeError` for others."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError
    number = float(value)
    if not math.isfinite(number) or abs(number) > 1e18:
        raise ValueError
    return number


def whole_of(value: Any) -> int:
    """Return a whole number, also one that is written as text; raises `ValueError` or `TypeError` for others."""
    number = number_of(value)
    if number != int(number):
        raise ValueError
    return int(number)


def is_on(value: Any) -> bool:
    """Whether a switch is on; texts of a command line are read as the trainer's parser means them."""
    return value is True or (isinstance(value, str) and value.lower() in ("true", "1", "yes"))


def number(target: str, least: float = 0, most: float = math.inf, *, above: bool = False, whole: bool = False) -> Rule:
    """Copy a number within bounds, `above` the lowest if that is not one of them; others are not possible."""

    def handle(value: Any, draft: ImportDraft) -> Outcome:
        found = whole_of(value) if whole else number_of(value)
        if not least <= found <= most or (above and found == least):
            return Fate.NOT_POSSIBLE, f"{rules.numbered(target, draft)} takes no such number, and keeps its default"
        return Fate.TAKEN, draft.set(rules.numbered(target, draft), found)

    return handle


def count(target: str) -> Rule:
    """Copy a whole number from 1; none is set for None and 0."""
    copy = number(target, 1, whole=True)

    def handle(value: Any, draft: ImportDraft) -> Outcome:
        return (Fate.DEFAULT, "not set") if value in (None, 0, "") else copy(value, draft)

    return handle


def switch(target: str, on: Any = True, off: Any = None) -> Rule:
    """Set a value for a switch that is on, and another one, if it has one, for one that is off."""

    def handle(value: Any, draft: ImportDraft) -> Outcome:
        if is_on(value):
            return Fate.TAKEN, draft.set(rules.numbered(target, draft), on)
        return (Fate.DEFAULT, "off") if off is None else (Fate.TAKEN, draft.set(rules.numbered(target, draft), off))

    return handle


def text(target: str) -> Rule:
    """Copy a text; an empty one is not set."""

    def handle(value: Any, draft: ImportDraft) -> Outcome:
        if value in (None, ""):
            return Fate.DEFAULT, "not set"
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            raise TypeError
        return Fate.TAKEN, draft.set(rules.numbered(target, draft), str(value))

    return handle
