"""Kinds of rules for a key of another trainer, each of which fills a part of the recipe and tells what became of the key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from reelworks.annexes.imports.draft import ImportDraft


class Fate(StrEnum):
    """Tells what became of a key of a config."""

    TAKEN = "taken"
    DEFAULT = "the same by default"
    NO_MEANING = "without meaning here"
    NOT_POSSIBLE = "not possible here"
    TO_FILL_IN = "to fill in"
    UNREAD = "unread"


@dataclass(frozen=True)
class ImportedKey:
    """Result of importing one key, by its dotted name in the config."""

    key: str
    value: object
    fate: Fate
    remark: str


Outcome = tuple[Fate, str]
Rule = Callable[[Any, ImportDraft], Outcome]


def to(target: str, none: Any = None) -> Rule:
    """Copy the value; None and 0 become `none` if that is given.

    In a target, `*` stands for the number in the key's own name, such as that of a dataset.
    """

    def handle(value: Any, draft: ImportDraft) -> Outcome:
        return Fate.TAKEN, draft.set(numbered(target, draft), none if none is not None and not value else value)

    return handle


def by_name(target: str, names: Mapping[Any, Any], otherwise: Any, why: str) -> Rule:
    """Translate a value by `names`; unknown values become `otherwise` and are listed with the reason."""

    def handle(value: Any, draft: ImportDraft) -> Outcome:
        if isinstance(value, str | bool | int | float | None) and value in names:
            return Fate.TAKEN, draft.set(numbered(target, draft), names[value])
        return Fate.NOT_POSSIBLE, f"{why}; {draft.set(numbered(target, draft), otherwise)} replaces it"

    return handle


def only(accepted: tuple[Any, ...], as_here: str, else_: str) -> Rule:
    """Report `as_here` for values that match the fixed behaviour, and `else_` for others."""

    def handle(value: Any, draft: ImportDraft) -> Outcome:
        return (Fate.DEFAULT, as_here) if value in accepted else (Fate.NOT_POSSIBLE, else_)

    return handle


def without_meaning(why: str) -> Rule:
    """Ignore a key whose value makes no difference."""
    return lambda value, draft: (Fate.NO_MEANING, why)


def read_with(key: str) -> Rule:
    """Ignore a key that the rule of another one reads."""
    return without_meaning(f"read with {key}")


def switch(target: str, value: Any) -> Rule:
    """Set a key to a value if the switch is on."""

    def handle(own: Any, draft: ImportDraft) -> Outcome:
        return (Fate.TAKEN, draft.set(numbered(target, draft), value)) if own else (Fate.DEFAULT, "off")

    return handle


def impossible(what_to_do: str, unless: tuple[Any, ...] = (None, False, 0, "", [])) -> Rule:
    """Report a feature that is not there, with what to do instead, unless it is off."""

    def handle(value: Any, draft: ImportDraft) -> Outcome:
        return (Fate.DEFAULT, "off") if value in unless else (Fate.NOT_POSSIBLE, what_to_do)

    return handle


def numbered(target: str, draft: ImportDraft) -> str:
    """Return a target with the first number of the key's own name in place of `*`."""
    return target.replace("*", str(draft.numbers[0])) if "*" in target else target
