"""Kinds of rules for a setting of another trainer, which fill the draft of a recipe and tell what becomes of the setting."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
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
Kind = Callable[..., Outcome]  # of rules: it has the arguments that a table gives behind those of a rule
_OFF: tuple[Any, ...] = (None, False, 0, "", [])


def exact_or_nearest(remark: str, differs: str = "") -> Outcome:
    """Return that a setting is taken, or how what it becomes here differs from what it is there."""
    return (Fate.NOT_POSSIBLE, f"{remark}: {differs}") if differs else (Fate.TAKEN, remark)


def _copied(convert: Callable[[Any], Any]) -> Kind:
    """Return a kind that copies values as what they are converted to; None and 0 become `none` if that is given.

    In a target, `*` stands for the number in the key's own name, such as that of a dataset.
    """

    def kind(value: Any, draft: ImportDraft, target: str, none: Any = None) -> Outcome:
        return Fate.TAKEN, draft.set(target, convert(value) if value or none is None else none)

    return kind


def _said(fate: Fate, form: str = "{}") -> Kind:
    """Return a kind that says the same of any value; `*` at its beginning is as in a target."""
    return lambda value, draft, words: (fate, draft.numbered(form.format(words)))


def by_name(value: Any, draft: ImportDraft, target: str, names: Mapping[Any, Any], otherwise: Any, why: str) -> Outcome:
    """Translate a value by `names`; unknown values become `otherwise` and are listed with the reason."""
    if isinstance(value, str | bool | int | float | None) and value in names:
        return Fate.TAKEN, draft.set(target, names[value])
    return Fate.NOT_POSSIBLE, f"{why}; {draft.set(target, otherwise)} replaces it"


def _by_part(value: Any, draft: ImportDraft, target: str, names: Mapping[str, str], why: str) -> Outcome:
    """Translate a text by the first part of it that is known; what has none is listed with the reason."""
    found = next((name for part, name in names.items() if part in str(value).lower()), None)
    return (Fate.NOT_POSSIBLE, why) if found is None else (Fate.TAKEN, draft.set(target, found))


def only(
    value: Any, draft: ImportDraft, accepted: Sequence[Any], here: str, other: str, *, null: bool = False
) -> Outcome:
    """Report `here` for values that match the fixed behaviour, and `other` for others."""
    known = [*accepted, *([None] if null else [])]
    return (Fate.DEFAULT, here) if any(means(value, each) for each in known) else (Fate.NOT_POSSIBLE, other)


def _switched(value: Any, draft: ImportDraft, on: str, off: str) -> Outcome:
    """Report a switch that says what is read of the config."""
    return Fate.TAKEN, on if value else off


def _fixed(own: Any, draft: ImportDraft, target: str, value: Any, note: str = "", differs: str = "") -> Outcome:
    """Set a value, whatever the setting's own is, and tell how it differs from that."""
    return exact_or_nearest(draft.set(target, value) + note, differs)


def _has(value: Any, draft: ImportDraft, keys: Sequence[str]) -> Outcome:
    """Tell what the recipe has already."""
    return Fate.TAKEN, ", ".join(map(draft.assignment, keys))


def each(value: Any, draft: ImportDraft, parts: Iterable[Rule]) -> Outcome:
    """Use several rules, up to the first whose part of the value is not taken, and tell what all of them did."""
    remarks = list[str]()
    for part in parts:
        fate, remark = part(value, draft)
        if fate is not Fate.TAKEN:
            return fate, remark
        remarks.append(remark)
    return Fate.TAKEN, ", ".join(remarks)


def _impossible(
    value: Any, draft: ImportDraft, what_to_do: str, unless: Sequence[Any] = _OFF, *, null: bool = False
) -> Outcome:
    """Report a feature that is not there, with what to do instead, unless it is off."""
    return only(value, draft, unless, "off", what_to_do, null=null)


def _amount(
    value: Any,
    draft: ImportDraft,
    target: str,
    low: float = 0.0,
    high: float = math.inf,
    none: Any = None,
    most: float = math.inf,
    read: Callable[..., float] = number,
) -> Outcome:
    """Take a number within a range, and `most` for a larger one; None and 0 become `none` if that is given."""
    is_none = none is not None and value in (None, 0)
    return Fate.TAKEN, draft.set(target, none if is_none else min(read(value, low, high), most))


def _count(value: Any, draft: ImportDraft, target: str, low: int = 1, high: int = MOST, none: Any = None) -> Outcome:
    """Take a whole number, likewise."""
    return _amount(value, draft, target, low, high, none, read=whole)


def _switch(value: Any, draft: ImportDraft, target: str, on: Any = True, off: Any = False) -> Outcome:
    """Take a switch, which is `on` or `off` here."""
    return Fate.TAKEN, draft.set(target, on if flag(value) else off)


def passes(value: Any, draft: ImportDraft, target: str) -> Outcome:
    """Take the passes over the data, without which a recipe has no end unless it has steps."""
    try:
        return Fate.TAKEN, draft.set(target, whole(value))
    except (TypeError, ValueError):
        return Fate.TO_FILL_IN, f"set the passes over the data: {draft.set(target, 1, 'to fill in')}"


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


def _place(value: Any, draft: ImportDraft, target: str) -> Outcome:
    """Take a path or an address; without one, nothing is set."""
    return (Fate.DEFAULT, "none") if value in (None, "") else (Fate.TAKEN, draft.set(target, text(value)))


def within(
    value: Any,
    draft: ImportDraft,
    target: str,
    least: float = 0,
    most: float = math.inf,
    *,
    above: bool = False,
    whole: bool = False,
    none: float | None = None,
    zero: Any = None,
) -> Outcome:
    """Copy a number within bounds, `above` the lowest if that is not one of them; others are not possible.

    `none` stands for null, and `zero` is what 0 becomes, if they are given.
    """
    given = none if value is None else value
    found = whole_of(given) if whole else number_of(given)
    if zero is not None and not found:
        return Fate.TAKEN, draft.set(target, zero)
    if not least <= found <= most or (above and found == least):
        return Fate.NOT_POSSIBLE, f"{draft.numbered(target)} takes no such number, and keeps its default"
    return Fate.TAKEN, draft.set(target, found)


def _counted(value: Any, draft: ImportDraft, target: str) -> Outcome:
    """Copy a whole number from 1; none is set for None and 0."""
    return (Fate.DEFAULT, "not set") if value in (None, 0, "") else within(value, draft, target, 1, whole=True)


def _word(value: Any, draft: ImportDraft, target: str) -> Outcome:
    """Copy a text, also one that is a number; an empty one is not set."""
    if value in (None, ""):
        return Fate.DEFAULT, "not set"
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise TypeError
    return Fate.TAKEN, draft.set(target, str(value))


_FUNCTIONS: tuple[Any, ...] = (
    *(by_name, _by_part, only, _switched, _impossible, _fixed, _has, _amount, _count, _switch, passes, _place),
    *(within, _counted, _word),
)
KINDS: dict[str, Kind] = {
    "to": _copied(lambda value: value),
    "copied": _copied(str),
    "decimal": _copied(float),
    "guidance": _copied(lambda value: max(float(value), 1.0)),  # less than 1 is none
    "taken": _said(Fate.TAKEN),
    "together": _said(Fate.TAKEN, "together with {}"),  # with another setting, whose line tells what both are
    "without_meaning": _said(Fate.NO_MEANING),
    "read_with": _said(Fate.NO_MEANING, "read with {}"),
    "to_fill_in": _said(Fate.TO_FILL_IN),
    "each": each,
    **{function.__name__.lstrip("_"): function for function in _FUNCTIONS},
}
