"""Guards of rules: when a setting is not taken at all, by what is to be said then.

Each has what a table says, the value and the draft, and returns the outcome at which the rule stops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.rules import Fate, Outcome, Rule
from reelworks.annexes.imports.values import flag, is_on

Guard = Callable[[Any, Any, ImportDraft], Outcome | None]


def _same(told: Mapping[str, Sequence[Any]], value: Any, draft: ImportDraft) -> Outcome | None:
    """Stop at values that mean what happens here anyway, by what that is."""
    return next(((Fate.DEFAULT, here) for here, values in told.items() if value in values), None)


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


_OFF: tuple[Any, ...] = (None, False, 0, "", [], "false", "False", "none", "None")
GUARDS: dict[str, Guard] = {
    # A switch that is off: by its truth, in any spelling of a command line, or as a switch and nothing else.
    "off": lambda told, value, draft: None if value else (Fate.DEFAULT, told),
    "zero": lambda told, value, draft: (Fate.DEFAULT, told) if value in _OFF else None,
    "not_on": lambda told, value, draft: None if is_on(value) else (Fate.DEFAULT, told),
    "flag": lambda told, value, draft: None if flag(value) else (Fate.DEFAULT, told),
    # Models of another objective.
    "flow": lambda told, value, draft: None if draft.is_flow else (Fate.NO_MEANING, told),
    "diffusion": lambda told, value, draft: (Fate.NO_MEANING, told) if draft.is_flow else None,
    # Another setting is given, or off.
    "yields_to": lambda told, _, draft: (
        (Fate.NO_MEANING, f"{told} decides") if draft.settings.get(told) is not None else None
    ),
    "belongs_to": lambda told, _, draft: (
        None if draft.settings.get(told) else (Fate.NO_MEANING, f"it belongs to {told}")
    ),
    "unset": lambda told, value, _: (Fate.DEFAULT, told) if value is None else None,
    **{"same": _same, "needs": _needs, "lora": _lora, "with": _with},
    **{"default_needs": _by_default(_needs), "default_lora": _by_default(_lora), "default_with": _by_default(_with)},
}


def guarded(rule: Rule, guards: Sequence[tuple[Guard, Any]]) -> Rule:
    """Return a rule with guards before it."""

    def handle(value: Any, draft: ImportDraft) -> Outcome:
        outcomes = (guard(told, value, draft) for guard, told in guards)
        return next(filter(None, outcomes), None) or rule(value, draft)

    return handle if guards else rule
