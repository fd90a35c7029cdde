"""Rules for settings with one number, switch or text, which take nothing else: strangers write words for numbers."""

from __future__ import annotations

import math
from typing import Any

from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.rules import Fate, Outcome, Rule, numbered

MOST = 2**40  # of anything that is counted


def number(value: Any, low: float = -math.inf, high: float = math.inf) -> float:
    """Return a number, which may be written as a text; raises `ValueError` for others, and out of the range."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("no number")
    found = float(value)
    if not (math.isfinite(found) and low <= found <= high):
        raise ValueError("out of range")
    return found


def whole(value: Any, low: int = 1, high: int = MOST) -> int:
    """Return a whole number, likewise; what follows the decimal point is cut off."""
    return int(number(value, low, high))


def flag(value: Any) -> bool:
    """Return a switch; raises `ValueError` for what is none."""
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise ValueError("no switch")
    return value


def text(value: Any) -> str:
    """Return a text that is not empty; raises `ValueError` for others."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("no text")
    return value


def amount(target: str, low: float = 0.0, high: float = math.inf, none: Any = None) -> Rule:
    """Take a number within a range; None and 0 become `none` if that is given."""

    def handle(value: Any, draft: ImportDraft) -> Outcome:
        taken = none if none is not None and value in (None, 0) else number(value, low, high)
        return Fate.TAKEN, draft.set(numbered(target, draft), taken)

    return handle


def count(target: str, low: int = 1, none: Any = None) -> Rule:
    """Take a whole number, likewise."""

    def handle(value: Any, draft: ImportDraft) -> Outcome:
        taken = none if none is not None and value in (None, 0) else whole(value, low)
        return Fate.TAKEN, draft.set(numbered(target, draft), taken)

    return handle


def switch(target: str, on: Any = True, off: Any = False) -> Rule:
    """Take a switch, which is `on` or `off` here."""
    return lambda value, draft: (Fate.TAKEN, draft.set(numbered(target, draft), on if flag(value) else off))


def passes(value: Any, draft: ImportDraft) -> Outcome:
    """Take the passes over the data, without which a recipe has no end unless it has steps."""
    try:
        return Fate.TAKEN, draft.set("train.max_epochs", whole(value))
    except (TypeError, ValueError):
        return Fate.TO_FILL_IN, f"set the passes over the data: {draft.set('train.max_epochs', 1, 'to fill in')}"


def together(name: str) -> Rule:
    """Report a setting that is read with another one, whose line tells what both are."""
    return lambda value, draft: (Fate.TAKEN, f"together with {name}")


def place(target: str) -> Rule:
    """Take a path or an address; without one, nothing is set."""

    def handle(value: Any, draft: ImportDraft) -> Outcome:
        if value in (None, ""):
            return Fate.DEFAULT, "none"
        return Fate.TAKEN, draft.set(numbered(target, draft), text(value))

    return handle


def range_of(low: float, high: float, value: float) -> float:
    """Return the nearest value in a range."""
    return min(max(value, low), high)
