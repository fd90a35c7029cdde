"""Kinds of rules for a key of Open-Sora, and the draft recipe that rules fill."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

_TABLES = (
    "data",
    "buckets",
    "model",
    "autoencoder",
    "text_encoder",
    "objective",
    "precision",
    "parallel",
    "train",
    "checkpoints",
    "samples",
)


class Fate(StrEnum):
    """Handling of a key of the config."""

    CONVERTED = "converted"
    NOT_NEEDED = "not needed"
    NOT_THERE_YET = "not there yet"
    UNKNOWN = "unknown"
    UNREAD = "unread"
    TO_FILL_IN = "to fill in"


Told = tuple[Fate, str]


class ImportedRecipe:
    """A recipe under construction: plain values, in the order in which they are written, beside the whole config."""

    def __init__(self, values: dict[str, Any], name: str) -> None:
        self.values, self.name = values, name
        self.dataset = {"path": "meta.csv"}
        self.recipe: dict[str, Any] = {"version": 1, "output": name, "dataset": [self.dataset]}
        self.recipe |= {table: {} for table in _TABLES}

    def type_of(self, section: str) -> str:
        """Return the type of a section of the config, or "" if it has none."""
        part = self.values.get(section)
        return str(part.get("type", "")) if isinstance(part, dict) else ""

    def set(self, key: str, value: Any) -> str:
        """Set a dotted key, and return the assignment as text."""
        *parents, last = key.split(".")
        table = self.recipe
        for part in parents:
            table = table[part]
        table[last] = value
        shown = f'"{value}"' if isinstance(value, str) else str(value).lower()
        return f"{key} = {shown}" if not isinstance(value, dict) else key


Rule = Callable[[Any, ImportedRecipe], Told]


def to(target: str, none: Any = None) -> Rule:
    """Copy the value; None and 0 become `none` if that is given."""

    def handle(value: Any, draft: ImportedRecipe) -> Told:
        value = none if none is not None and not value else value
        return Fate.CONVERTED, draft.set(target, list(value) if isinstance(value, tuple) else value)

    return handle


def by_name(target: str, names: dict[Any, Any], otherwise: Any, why: str) -> Rule:
    """Translate a value by `names`; unknown values become `otherwise` and are listed with the reason."""

    def handle(value: Any, draft: ImportedRecipe) -> Told:
        if isinstance(value, str | bool | None) and value in names:
            return Fate.CONVERTED, draft.set(target, names[value])
        return Fate.NOT_THERE_YET, f"{why}; {draft.set(target, otherwise)} replaces it"

    return handle


def only(accepted: tuple[Any, ...], as_here: str, else_: str) -> Rule:
    """Report `as_here` for values that match the fixed behaviour, and `else_` for others."""

    def handle(value: Any, draft: ImportedRecipe) -> Told:
        if value in accepted:
            return Fate.NOT_NEEDED, as_here
        return Fate.NOT_THERE_YET, else_

    return handle


def not_needed(why: str) -> Rule:
    """Ignore a key whose value makes no difference."""
    return lambda value, draft: (Fate.NOT_NEEDED, why)
