"""Kinds of rules for a setting of another trainer, and the tables that say which rule each setting has.

Tables are TOML files beside each trainer. A section that is named as a kind of rule lists settings by that kind's one argument, such
as `[without_meaning]`, where the reasons are; `[rules]` has one setting each: first the kind with its first argument, and then the
others by their names. `code = "steps"` means the function `_steps` of the trainer, which is a rule itself, or makes one of the
other arguments. Before the kind, guards can say when a setting is not taken at all, and why: `off = "no previews"`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from inspect import isfunction
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.values import flag, is_on, number, number_of, text, whole, whole_of
from reelworks.core import toml

T = TypeVar("T")


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
Guard = Callable[[Any, Any, ImportDraft], Outcome | None]  # of what the table says, the value and the draft
_OFF: tuple[Any, ...] = (None, False, 0, "", [])


def table(folder: str, name: str) -> dict[str, Any]:
    """Return the table of this name in a trainer's folder."""
    return toml.parse((Path(__file__).parent / folder / f"{name}.toml").read_text(encoding="utf-8"))


def defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return defaults as a table has them, in which "none" stands for None."""
    return {key: None if value == "none" else value for key, value in given.items()}


def read(folder: str, name: str, *modules: ModuleType) -> dict[str, Rule]:
    """Return the rules of a table by setting; `code` in it means functions of some modules."""
    code: dict[str, Any] = {
        key.lstrip("_"): value for module in modules for key, value in vars(module).items() if isfunction(value)
    }
    content = table(folder, name)
    found: dict[str, Rule] = {}

    def made(spec: Mapping[str, Any]) -> Rule:
        guards = [(_GUARDS[name], told) for name, told in takewhile(lambda item: item[0] in _GUARDS, spec.items())]
        (kind, first), *rest = list(spec.items())[len(guards) :]
        more = {key: made(value) if key == "rule" else value for key, value in rest}
        if kind == "impossible" and not more and "off" in content:
            more = {"unless": content["off"], "null": True}
        if kind == "each":
            return _guarded(each(*map(made, first)), guards)
        if kind != "code":
            return _guarded(_KINDS[kind](first, **more), guards)
        return _guarded(code[first](**more) if more else code[first], guards)

    for kind in content.keys() - {"off", "rules"}:
        for first, settings in content[kind].items():
            found |= dict.fromkeys(settings, made({kind: first}))
    return found | {setting: made(spec) for setting, spec in content.get("rules", {}).items()}


def _guarded(rule: Rule, guards: Sequence[tuple[Guard, Any]]) -> Rule:
    def handle(value: Any, draft: ImportDraft) -> Outcome:
        outcomes = (guard(told, value, draft) for guard, told in guards)
        return next(filter(None, outcomes), None) or rule(value, draft)

    return handle if guards else rule


def _same(told: Mapping[str, Sequence[Any]], value: Any, draft: ImportDraft) -> Outcome | None:
    """Stop at values that mean what happens here anyway, by what that is."""
    return next(((Fate.DEFAULT, here) for here, values in told.items() if value in values), None)


def _unset(told: str, value: Any, draft: ImportDraft) -> Outcome | None:
    """Stop at null."""
    return (Fate.DEFAULT, told) if value is None else None


def _needs(told: Mapping[str, str], value: Any, draft: ImportDraft) -> Outcome | None:
    """Stop if the recipe lacks one of some keys, by what is to be said then."""
    return next(((Fate.NO_MEANING, why) for key, why in told.items() if not draft.get(key)), None)


def _lora(told: Mapping[str, Sequence[str]], value: Any, draft: ImportDraft) -> Outcome | None:
    """Stop unless the adapter is of some types, by what is to be said then."""
    return next(((Fate.NO_MEANING, why) for why, types in told.items() if draft.get("lora.type") not in types), None)


def _with(told: Mapping[str, Mapping[str, Sequence[Any]]], value: Any, draft: ImportDraft) -> Outcome | None:
    """Stop unless another setting has one of some values, by what is to be said then."""
    for why, others in told.items():
        for key, values in others.items():
            given = draft.settings.get(key)
            if not any(type(given) is type(each) and given == each for each in values):
                return Fate.NO_MEANING, why
    return None


def _by_default(guard: Guard) -> Guard:
    """Say of what a guard stops that it is the same by default."""

    def handle(told: Any, value: Any, draft: ImportDraft) -> Outcome | None:
        outcome = guard(told, value, draft)
        return None if outcome is None else (Fate.DEFAULT, outcome[1])

    return handle


def _yields_to(told: str, value: Any, draft: ImportDraft) -> Outcome | None:
    """Stop if another setting is given."""
    return None if draft.settings.get(told) is None else (Fate.NO_MEANING, f"{told} decides")


_GUARDS: dict[str, Guard] = {
    "off": lambda told, value, draft: None if value else (Fate.DEFAULT, told),
    "not_on": lambda told, value, draft: None if is_on(value) else (Fate.DEFAULT, told),
    "flag": lambda told, value, draft: None if flag(value) else (Fate.DEFAULT, told),
    "flow": lambda told, value, draft: None if draft.is_flow else (Fate.NO_MEANING, told),
    "diffusion": lambda told, value, draft: (Fate.NO_MEANING, told) if draft.is_flow else None,
    **{"same": _same, "unset": _unset, "needs": _needs, "lora": _lora, "with": _with, "yields_to": _yields_to},
    **{"default_needs": _by_default(_needs), "default_lora": _by_default(_lora), "default_with": _by_default(_with)},
}


def told(remark: str, differs: str = "") -> Outcome:
    """Return that a setting is taken, or how what it becomes here differs from what it is there."""
    return (Fate.NOT_POSSIBLE, f"{remark}: {differs}") if differs else (Fate.TAKEN, remark)


def fitting(known: Mapping[str, T], name: Any) -> T:
    """Return what the first pattern that fits a name has; the last of a table fits all. Raises `TypeError` for no name."""
    if isinstance(name, list | dict):
        raise TypeError("no name")
    return next(value for pattern, value in known.items() if fnmatchcase(str(name), pattern))


def to(target: str, none: Any = None) -> Rule:
    """Copy the value; None and 0 become `none` if that is given.

    In a target, `*` stands for the number in the key's own name, such as that of a dataset.
    """
    return lambda value, draft: (Fate.TAKEN, draft.set(target, none if none is not None and not value else value))


def by_name(target: str, names: Mapping[Any, Any], otherwise: Any, why: str) -> Rule:
    """Translate a value by `names`; unknown values become `otherwise` and are listed with the reason."""

    def handle(value: Any, draft: ImportDraft) -> Outcome:
        if isinstance(value, str | bool | int | float | None) and value in names:
            return Fate.TAKEN, draft.set(target, names[value])
        return Fate.NOT_POSSIBLE, f"{why}; {draft.set(target, otherwise)} replaces it"

    return handle


def only(accepted: Sequence[Any], here: str, other: str, *, null: bool = False) -> Rule:
    """Report `here` for values that match the fixed behaviour, and `other` for others."""
    known = [*accepted, *([None] if null else [])]
    return lambda value, draft: (Fate.DEFAULT, here) if value in known else (Fate.NOT_POSSIBLE, other)


def without_meaning(why: str) -> Rule:
    """Ignore a key whose value makes no difference."""
    return lambda value, draft: (Fate.NO_MEANING, why)


def read_with(key: str) -> Rule:
    """Ignore a key that the rule of another one reads."""
    return without_meaning(f"read with {key}")


def taken(remark: str) -> Rule:
    """Report a key that is taken with others."""
    return lambda value, draft: (Fate.TAKEN, remark)


def together(name: str) -> Rule:
    """Report a setting that is read with another one, whose line tells what both are."""
    return taken(f"together with {name}")


def to_fill_in(remark: str) -> Rule:
    """Report a value that only the user knows."""
    return lambda value, draft: (Fate.TO_FILL_IN, remark)


def switched(on: str, off: str) -> Rule:
    """Report a switch that says what is read of the config."""
    return lambda value, draft: (Fate.TAKEN, on if value else off)


def copied(target: str) -> Rule:
    """Copy a text, whatever it is."""
    return lambda value, draft: (Fate.TAKEN, draft.set(target, str(value)))


def fixed(target: str, value: Any, note: str = "") -> Rule:
    """Set a value, whatever the setting's own is."""
    return lambda own, draft: (Fate.TAKEN, draft.set(target, value) + note)


def decimal(target: str, none: float | None = None) -> Rule:
    """Copy a number as one with a decimal point; None and 0 become `none` if that is given."""
    return lambda value, draft: (
        Fate.TAKEN,
        draft.set(target, none if none is not None and not value else float(value)),
    )


def each(*parts: Rule) -> Rule:
    """Use several rules, up to the first whose part of the value is not taken, and tell what all of them did."""

    def handle(value: Any, draft: ImportDraft) -> Outcome:
        remarks = list[str]()
        for part in parts:
            fate, remark = part(value, draft)
            if fate is not Fate.TAKEN:
                return fate, remark
            remarks.append(remark)
        return Fate.TAKEN, ", ".join(remarks)

    return handle


def guidance(target: str) -> Rule:
    """Copy a guidance scale; less than 1 is none."""
    return lambda value, draft: (Fate.TAKEN, draft.set(target, max(float(value), 1.0)))


def impossible(what_to_do: str, unless: Sequence[Any] | None = None, *, null: bool = False) -> Rule:
    """Report a feature that is not there, with what to do instead, unless it is off."""
    off = _OFF if unless is None else [*unless, *([None] if null else [])]
    return lambda value, draft: (Fate.DEFAULT, "off") if value in off else (Fate.NOT_POSSIBLE, what_to_do)


def amount(target: str, low: float = 0.0, high: float = math.inf, none: Any = None) -> Rule:
    """Take a number within a range; None and 0 become `none` if that is given."""

    def handle(value: Any, draft: ImportDraft) -> Outcome:
        taken = none if none is not None and value in (None, 0) else number(value, low, high)
        return Fate.TAKEN, draft.set(target, taken)

    return handle


def count(target: str, low: int = 1, none: Any = None) -> Rule:
    """Take a whole number, likewise."""

    def handle(value: Any, draft: ImportDraft) -> Outcome:
        taken = none if none is not None and value in (None, 0) else whole(value, low)
        return Fate.TAKEN, draft.set(target, taken)

    return handle


def switch(target: str, on: Any = True, off: Any = False) -> Rule:
    """Take a switch, which is `on` or `off` here."""
    return lambda value, draft: (Fate.TAKEN, draft.set(target, on if flag(value) else off))


def passes(target: str) -> Rule:
    """Take the passes over the data, without which a recipe has no end unless it has steps."""

    def handle(value: Any, draft: ImportDraft) -> Outcome:
        try:
            return Fate.TAKEN, draft.set(target, whole(value))
        except (TypeError, ValueError):
            return Fate.TO_FILL_IN, f"set the passes over the data: {draft.set(target, 1, 'to fill in')}"

    return handle


def place(target: str) -> Rule:
    """Take a path or an address; without one, nothing is set."""

    def handle(value: Any, draft: ImportDraft) -> Outcome:
        return (Fate.DEFAULT, "none") if value in (None, "") else (Fate.TAKEN, draft.set(target, text(value)))

    return handle


def within(target: str, least: float = 0, most: float = math.inf, *, above: bool = False, whole: bool = False) -> Rule:
    """Copy a number within bounds, `above` the lowest if that is not one of them; others are not possible."""

    def handle(value: Any, draft: ImportDraft) -> Outcome:
        found = whole_of(value) if whole else number_of(value)
        if not least <= found <= most or (above and found == least):
            return Fate.NOT_POSSIBLE, f"{draft.numbered(target)} takes no such number, and keeps its default"
        return Fate.TAKEN, draft.set(target, found)

    return handle


def counted(target: str) -> Rule:
    """Copy a whole number from 1; none is set for None and 0."""
    copy = within(target, 1, whole=True)
    return lambda value, draft: (Fate.DEFAULT, "not set") if value in (None, 0, "") else copy(value, draft)


def word(target: str) -> Rule:
    """Copy a text, also one that is a number; an empty one is not set."""

    def handle(value: Any, draft: ImportDraft) -> Outcome:
        if value in (None, ""):
            return Fate.DEFAULT, "not set"
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            raise TypeError
        return Fate.TAKEN, draft.set(target, str(value))

    return handle


_KINDS: dict[str, Callable[..., Rule]] = {
    kind.__name__: kind
    for kind in (
        *(to, by_name, only, without_meaning, read_with, taken, together, to_fill_in, switched, impossible, copied),
        *(fixed, decimal, guidance, amount, count, switch, passes, place, within, counted, word),
    )
}
