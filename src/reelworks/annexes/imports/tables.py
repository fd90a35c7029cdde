"""Tables that say which rule each setting of a trainer has, and what its names mean here.

Tables are TOML files beside each trainer. A section that is named as a kind of rule lists settings by that kind's one argument, such
as `[without_meaning]`, where the reasons are; `[rules]` has one setting each: first its guards (see `guards`), such as
`off = "no previews"`, then the kind with its first argument, and then the others by their names. `code = "steps"` means the function
`_steps` of the trainer, which takes the other arguments; `each` has several rules, and `cases` one for each pattern of values.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from inspect import isfunction
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from reelworks.annexes.imports import rules
from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.guards import GUARDS
from reelworks.annexes.imports.rules import Kind, Outcome, Rule
from reelworks.core import toml

T = TypeVar("T")


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


def _case(value: Any, draft: ImportDraft, known: Mapping[str, Rule]) -> Outcome:
    return fitting(known, value)(value, draft)


_KINDS: dict[str, Kind] = rules.KINDS | {"cases": _case}
