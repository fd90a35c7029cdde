"""Makes a history that goes wrong as small as it can be and still go wrong in the same way."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

Json = dict[str, Any]


def shrink(history: Json, still: Callable[[Json], bool], most: int = 150) -> Json:
    """Leave out starts, changes and oddities one by one, as long as the history stays wrong.

    Args:
        history: One that goes wrong.
        still: Says whether a smaller one does too.
        most: Histories that are tried.
    """
    tried = 0
    smaller = True
    while smaller:
        smaller = False
        for candidate in _smaller(history):
            if tried >= most:
                return history
            tried += 1
            if still(candidate):
                history, smaller = candidate, True
                break
    return history


def _smaller(history: Json) -> Iterator[Json]:
    """Histories with one thing less, the largest things first."""
    starts = history["starts"]
    if history["after"]:
        yield {**history, "after": []}
    if len(starts) > 1:
        yield {**history, "starts": starts[:-1]}
    for number in range(len(starts) - 1):
        yield {**history, "starts": starts[:number] + starts[number + 1 :]}
    if history.get("typed"):
        yield {**history, "typed": False}
    for number, start in enumerate(starts):
        for without in _less(start):
            yield {**history, "starts": [*starts[:number], without, *starts[number + 1 :]]}
    for place in range(len(history["after"])):
        yield {**history, "after": history["after"][:place] + history["after"][place + 1 :]}


def _less(start: Json) -> Iterator[Json]:
    """A start with one thing less."""
    for name in ("world", "resume", "scratch", "vanish"):
        if name in start:
            less = copy.deepcopy(start)
            del less[name]
            less["end"].pop("rank", None)
            yield less
    if "nan" in start["end"]:
        yield {**start, "end": {key: value for key, value in start["end"].items() if key != "nan"}}
    if start["end"]["by"] != "steps":
        yield {**start, "end": {"by": "steps", "steps": 2}}
    changed = start["changes"]
    for place in range(len(changed)):
        yield {**start, "changes": changed[:place] + changed[place + 1 :]}
