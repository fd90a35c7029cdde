"""Kinds of rules for a setting of another trainer, which fill the draft of a recipe and tell what becomes of the setting."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.values import MOST, flag, means, number, number_of, text, whole, whole_of
from reelworks.models import registry


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
_OFF: tuple[Any, ...] = (None, False, 0, "", [])


def exact_or_nearest(remark: str, differs: str = "") -> Outcome:
    """Return that a setting is taken, or how what it becomes here differs from what it is there."""
    return (Fate.NOT_POSSIBLE, f"{remark}: {differs}") if differs else (Fate.TAKEN, remark)


def _copied(convert: Callable[[Any], Any]) -> Callable[..., Rule]:
    """Return a kind that copies values as what they are converted to; None and 0 become `none` if that is given.

    In a target, `*` stands for the number in the key's own name, such as that of a dataset.
    """

    def kind(target: str, none: Any = None) -> Rule:
        return lambda value, draft: (Fate.TAKEN, draft.set(target, convert(value) if value or none is None else none))

    return kind


def _said(fate: Fate, form: str = "{}") -> Callable[[str], Rule]:
    """Return a kind that says the same of any value; `*` at its beginning is as in a target."""
    return lambda words: lambda value, draft: (fate, draft.numbered(form.format(words)))


without_meaning = _said(Fate.NO_MEANING)
together = _said(Fate.TAKEN, "together with {}")  # with another setting, whose line tells what both are


def by_name(target: str, names: Mapping[Any, Any], otherwise: Any, why: str) -> Rule:
    """Translate a value by `names`; unknown values become `otherwise` and are listed with the reason."""

    def handle(value: Any, draft: ImportDraft) -> Outcome:
        if isinstance(value, str | bool | int | float | None) and value in names:
            return Fate.TAKEN, draft.set(target, names[value])
        return Fate.NOT_POSSIBLE, f"{why}; {draft.set(target, otherwise)} replaces it"

    return handle


def by_part(target: str, names: Mapping[str, str], why: str) -> Rule:
    """Translate a text by the first part of it that is known; what has none is listed with the reason."""

    def handle(value: Any, draft: ImportDraft) -> Outcome:
        found = next((name for part, name in names.items() if part in str(value).lower()), None)
        return (Fate.NOT_POSSIBLE, why) if found is None else (Fate.TAKEN, draft.set(target, found))

    return handle


def only(accepted: Sequence[Any], here: str, other: str, *, null: bool = False) -> Rule:
    """Report `here` for values that match the fixed behaviour, and `other` for others."""
    known = [*accepted, *([None] if null else [])]

    def handle(value: Any, draft: ImportDraft) -> Outcome:
        return (Fate.DEFAULT, here) if any(means(value, each) for each in known) else (Fate.NOT_POSSIBLE, other)

    return handle


def switched(on: str, off: str) -> Rule:
    """Report a switch that says what is read of the config."""
    return lambda value, draft: (Fate.TAKEN, on if value else off)


def fixed(target: str, value: Any, note: str = "", differs: str = "") -> Rule:
    """Set a value, whatever the setting's own is, and tell how it differs from that."""
    return lambda own, draft: exact_or_nearest(draft.set(target, value) + note, differs)


def has(keys: Sequence[str]) -> Rule:
    """Tell what the recipe has already."""
    return lambda value, draft: (Fate.TAKEN, ", ".join(map(draft.assignment, keys)))


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


def impossible(what_to_do: str, unless: Sequence[Any] = _OFF, *, null: bool = False) -> Rule:
    """Report a feature that is not there, with what to do instead, unless it is off."""
    return only(unless, "off", what_to_do, null=null)


def amount(
    target: str,
    low: float = 0.0,
    high: float = math.inf,
    none: Any = None,
    most: float = math.inf,
    read: Callable[..., float] = number,
) -> Rule:
    """Take a number within a range, and `most` for a larger one; None and 0 become `none` if that is given."""

    def handle(value: Any, draft: ImportDraft) -> Outcome:
        is_none = none is not None and value in (None, 0)
        return Fate.TAKEN, draft.set(target, none if is_none else min(read(value, low, high), most))

    return handle


def count(target: str, low: int = 1, high: int = MOST, none: Any = None) -> Rule:
    """Take a whole number, likewise."""
    return amount(target, low, high, none, read=whole)


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


def train_texts(draft: ImportDraft) -> Outcome:
    """Train the text encoders with a LoRA, where that is possible."""
    known = registry.TEXT_ENCODERS.get(str(draft.get("text_encoder.name")))
    if known is None or not known.is_trainable:
        return Fate.NOT_POSSIBLE, "text encoders keep their weights: only the denoiser is trained"
    return Fate.TAKEN, draft.set("lora.text_encoders", True)


def text_rate(value: Any, draft: ImportDraft, optimizer: Any) -> Outcome:
    """Take the rate of trained text encoders, which some optimizers share with the network; of several, the first one."""
    rates = [number(each, 1e-300) for each in (value if isinstance(value, list) else [value])]
    if any(name in str(optimizer).lower().replace("_", "") for name in ("prodigy", "schedulefree")):
        return Fate.NOT_POSSIBLE, "this optimizer has one rate for all weights"
    remark = draft.set("train.text_encoder_learning_rate", rates[0])
    return exact_or_nearest(remark, "" if len({*rates}) == 1 else "for all text encoders")


def place(target: str) -> Rule:
    """Take a path or an address; without one, nothing is set."""

    def handle(value: Any, draft: ImportDraft) -> Outcome:
        return (Fate.DEFAULT, "none") if value in (None, "") else (Fate.TAKEN, draft.set(target, text(value)))

    return handle


def within(
    target: str,
    least: float = 0,
    most: float = math.inf,
    *,
    above: bool = False,
    whole: bool = False,
    none: float | None = None,
    zero: Any = None,
) -> Rule:
    """Copy a number within bounds, `above` the lowest if that is not one of them; others are not possible.

    `none` stands for null, and `zero` is what 0 becomes, if they are given.
    """

    def handle(value: Any, draft: ImportDraft) -> Outcome:
        given = none if value is None else value
        found = whole_of(given) if whole else number_of(given)
        if zero is not None and not found:
            return Fate.TAKEN, draft.set(target, zero)
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


KINDS: dict[str, Callable[..., Rule]] = {
    "to": _copied(lambda value: value),
    "copied": _copied(str),
    "decimal": _copied(float),
    "guidance": _copied(lambda value: max(float(value), 1.0)),  # less than 1 is none
    **{"without_meaning": without_meaning, "read_with": _said(Fate.NO_MEANING, "read with {}")},
    **{"taken": _said(Fate.TAKEN), "together": together, "to_fill_in": _said(Fate.TO_FILL_IN)},
    **{
        kind.__name__: kind
        for kind in (
            *(by_name, by_part, only, switched, impossible, fixed, has, amount, count, switch, passes, place, within),
            *(counted, word),
        )
    },
}
