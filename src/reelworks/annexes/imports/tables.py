"""Tables that say which rule each setting of a trainer has, and what its names mean here.

Tables are TOML files beside each trainer. A section that is named as a kind of rule lists settings by that kind's one argument, such
as `[without_meaning]`, where the reasons are; `[rules]` has one setting each: first its guards, such as
`off = "no previews"`, then the kind with its first argument, and then the others by their names. `code = "steps"` means the function
`_steps` of the trainer, which takes the other arguments; `each` has several rules, and `cases` one for each pattern of values.

A guard has what a table says, the value and the draft, and tells why the rule stops; None if it does not. What the setting becomes then
is one of `Fate`: that which stands beside the guard, or another one by the word before its name, as in `impossible_needs`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from inspect import isfunction
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from reelworks.annexes.imports import datasets, rules
from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.rules import Fate, Kind, Outcome, Rule
from reelworks.annexes.imports.values import flag, is_on, means, whole_of
from reelworks.core import toml

T = TypeVar("T")
_Guard = Callable[[Any, Any, ImportDraft], Outcome | None]
_Stop = Callable[[Any, Any, ImportDraft], str | None]


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
        guards = [(GUARDS[name], told) for name, told in takewhile(lambda item: item[0] in GUARDS, spec.items())]
        (kind, first), *rest = list(spec.items())[len(guards) :]
        more = {key: made(value) if key == "rule" else value for key, value in rest}
        if kind == "impossible" and not more and "off" in content:
            more = {"unless": content["off"], "null": True}
        if kind == "cases":
            first = {pattern: made(inner) for pattern, inner in first.items()}
        elif kind == "each":
            first = list(map(made, first))
        function, arguments = (code[first], ()) if kind == "code" else (_KINDS[kind], (first,))

        def rule(value: Any, draft: ImportDraft) -> Outcome:
            outcomes = (guard(told, value, draft) for guard, told in guards)
            return next(filter(None, outcomes), None) or function(value, draft, *arguments, **more)

        return rule

    for kind in content.keys() - {"off", "rules"}:
        for first, settings in content[kind].items():
            found |= dict.fromkeys(settings, made({kind: first}))
    return found | {setting: made(spec) for setting, spec in content.get("rules", {}).items()}


def fitting(known: Mapping[str, T], name: Any) -> T:
    """Return what the first pattern that fits a name has. Raises `ValueError` for a name that none fits, and for what is none."""
    for pattern, value in known.items():
        if not isinstance(name, list | dict) and fnmatchcase(str(name), pattern):
            return value
    raise ValueError("no such name")


_KINDS: dict[str, Kind] = rules.KINDS | {"cases": lambda value, draft, known: fitting(known, value)(value, draft)}


def _if(is_stopped: Callable[[Any, ImportDraft], bool]) -> _Stop:
    """Stop if something holds, whose reason is all that the table says."""
    return lambda told, value, draft: told if is_stopped(value, draft) else None


def _by(is_stopped: Callable[[Any, Any, ImportDraft], bool]) -> _Stop:
    """Stop at the first reason in the table whose condition holds."""
    return lambda told, value, draft: next((why for why, of in told.items() if is_stopped(of, value, draft)), None)


def _by_key(is_stopped: Callable[[str, ImportDraft], bool]) -> _Stop:
    """Stop for the reason that the table has beside the first key for which something holds."""
    return lambda told, _, draft: next((why for key, why in told.items() if is_stopped(key, draft)), None)


def _are(wanted: Mapping[str, Sequence[Any]], draft: ImportDraft) -> list[bool]:
    """Return of other settings whether each has one of some values; a switch is no number."""
    given = [(draft.beside(key), values) for key, values in wanted.items()]
    return [
        any(means(own, each) and (isinstance(own, str) or type(own) is type(each)) for each in values)
        for own, values in given
    ]


def _became(wanted: Mapping[str, Sequence[Any]], draft: ImportDraft) -> list[bool]:
    """Return of keys of the recipe whether each has one of some values."""
    return [draft.get(key) in values for key, values in wanted.items()]


_OFF: tuple[Any, ...] = (None, False, 0, "", [], "false", "False", "none", "None")
_STOPS: dict[str, tuple[Fate, _Stop]] = {
    # A switch that is off: by its truth, in any spelling of a command line, or as a switch and nothing else.
    "off": (Fate.DEFAULT, _if(lambda value, draft: not value)),
    "zero": (Fate.DEFAULT, _if(lambda value, draft: value in _OFF)),
    "not_on": (Fate.DEFAULT, _if(lambda value, draft: not is_on(value))),
    "flag": (Fate.DEFAULT, _if(lambda value, draft: not flag(value))),
    "unset": (Fate.DEFAULT, _if(lambda value, draft: value is None)),
    # Values that mean what happens here anyway; all values but some; numbers below a whole one.
    "same": (Fate.DEFAULT, _by(lambda values, value, draft: any(means(value, each) for each in values))),
    "unlike": (Fate.DEFAULT, _by(lambda values, value, draft: not any(means(value, each) for each in values))),
    "below": (Fate.DEFAULT, _by(lambda least, value, draft: whole_of(value) < least)),
    # Models of another objective, of pictures, without given frames; those whose names begin otherwise, or so.
    "flow": (Fate.NO_MEANING, _if(lambda value, draft: not draft.is_flow)),
    "diffusion": (Fate.NO_MEANING, _if(lambda value, draft: draft.is_flow)),
    "clips": (Fate.NO_MEANING, _if(lambda value, draft: datasets.pictures_only(draft))),
    "frames": (Fate.NO_MEANING, _if(lambda value, draft: not datasets.conditioning_of(draft).frames)),
    "models": (Fate.NO_MEANING, _by(lambda starts, value, draft: not datasets.is_model(draft, starts))),
    "not_models": (Fate.NO_MEANING, _by(lambda starts, value, draft: datasets.is_model(draft, starts))),
    # What the recipe became: it lacks a key, has another adapter, has other values than some, or has one of some.
    "needs": (Fate.NO_MEANING, _by_key(lambda key, draft: not draft.get(key))),
    "lora": (Fate.NO_MEANING, _by(lambda types, value, draft: draft.get("lora.type") not in types)),
    "not_lora": (Fate.NO_MEANING, _by(lambda types, value, draft: draft.get("lora.type") in types)),
    "where": (Fate.NO_MEANING, _by(lambda wanted, value, draft: not all(_became(wanted, draft)))),
    "except": (Fate.NO_MEANING, _by(lambda wanted, value, draft: any(_became(wanted, draft)))),
    # Another setting, with `*` for the number of the own one: it is given, or off, has other values than some, or one of some.
    "yields_to": (Fate.NO_MEANING, lambda told, _, draft: None if draft.beside(told) is None else f"{told} decides"),
    "belongs_to": (
        Fate.NO_MEANING,
        lambda told, _, draft: None if draft.beside(told) else f"it belongs to {told.rpartition('.')[2]}",
    ),
    "given": (Fate.NO_MEANING, _by_key(lambda key, draft: bool(draft.beside(key)))),
    "with": (Fate.NO_MEANING, _by(lambda wanted, value, draft: not all(_are(wanted, draft)))),
    "without": (Fate.NO_MEANING, _by(lambda wanted, value, draft: any(_are(wanted, draft)))),
}
_WORDS = {
    "": None,
    "default_": Fate.DEFAULT,
    "meaningless_": Fate.NO_MEANING,
    "impossible_": Fate.NOT_POSSIBLE,
    "taken_": Fate.TAKEN,
}


def _guard(fate: Fate, stop: _Stop) -> _Guard:
    def handle(told: Any, value: Any, draft: ImportDraft) -> Outcome | None:
        why = stop(told, value, draft)
        return None if why is None else (fate, why)

    return handle


GUARDS = {
    f"{word}{name}": _guard(fate or own, stop) for word, fate in _WORDS.items() for name, (own, stop) in _STOPS.items()
}
