"""Draws histories: how starts end, and what changes between them."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Any

import faults

from drills._histories import changes

Json = dict[str, Any]


def draw(chance: random.Random, *, typed: bool = False, worlds: bool = True, without: Collection[str] = ()) -> Json:
    """Draw a history.

    Args:
        chance: Where all choices come from.
        typed: All its starts are typed as commands.
        worlds: Some of its starts have several ranks.
        without: Changes that are left out.
    """
    starts = [_start(chance, number, worlds=worlds) for number in range(chance.randint(2, 6))]
    history: Json = {"seed": chance.randrange(1 << 20), "starts": starts, "after": _changes(chance)}
    for part in [*starts, history]:
        name = "after" if "after" in part else "changes"
        part[name] = [one for one in part[name] if one["do"] not in without]
    if chance.random() < 0.25:
        history["stages"] = _stages(chance)
    if worlds and chance.random() < 0.08:
        history["degrees"] = [chance.choice([1, 2]) for _ in range(3)]
        for start in starts:
            start["world"] = chance.choice([2, 2, 4])
            start["end"]["rank"] = chance.randrange(start["world"])
    if typed:
        history["typed"] = True
    if (most := max(start.get("world", 1) for start in starts)) > 1:
        history["accumulation"] = most  # or some ranks would have nothing to do
    return history


def _stages(chance: random.Random) -> list[Json]:
    """Draw one to three stages that end, and one that goes on to the end of the run."""
    stages = [{"name": f"s{i}", **_stage_end(chance), **_of_stage(chance)} for i in range(chance.randint(1, 3))]
    return [*stages, {"name": "rest", **_of_stage(chance)}]


def _stage_end(chance: random.Random) -> Json:
    return chance.choice([{"steps": chance.randint(1, 6)}, {"epochs": 1}, {"clips": chance.randint(3, 20)}])


def _of_stage(chance: random.Random) -> Json:
    """Draw keys of a stage's own."""
    own: Json = {"table": chance.choice(["one", "two", "small", "long"])} if chance.random() < 0.7 else {}
    if chance.random() < 0.3:
        own["train"] = {"gradient_accumulation_steps": chance.randint(1, 4)}
    if chance.random() < 0.3:
        own["data"] = {"frame_interval": chance.choice([1, 2])}
    return own | {key: "reset" for key in ("optimizer", "ema") if chance.random() < 0.3}


def _changes(chance: random.Random) -> list[Json]:
    return [changes.draw(chance) for _ in range(chance.choice([0, 1, 1, 2, 2, 3, 4]))]


def _start(chance: random.Random, number: int, *, worlds: bool) -> Json:
    start: Json = {"changes": _changes(chance) if number else [], "end": _end(chance)}
    if number and chance.random() < 0.06:
        start["scratch"] = True
    if number and chance.random() < 0.12:
        start["resume"] = chance.randrange(8)
    if worlds and chance.random() < 0.06:
        start["world"] = chance.choice([2, 2, 2, 3, 4])
        start["end"]["rank"] = chance.randrange(start["world"])
    if chance.random() < 0.08:
        start["vanish"] = chance.randrange(1 << 20)
    return start


def _end(chance: random.Random) -> Json:
    """How a start ends, and with it a step that is not finite now and then."""
    end = chance.choices([_steps, _natural, _sigterm, _in_a_call, _at_a_point], [35, 12, 13, 25, 15])[0](chance)
    if chance.random() < 0.05:
        end["nan"] = chance.randint(1, 3)
    return end


def _steps(chance: random.Random) -> Json:
    return {"by": "steps", "steps": chance.randint(1, 7)}


def _natural(chance: random.Random) -> Json:
    return {"by": "epochs", "epochs": chance.choice([0, 0, 0, 1])}


def _sigterm(chance: random.Random) -> Json:
    return {"by": "sigterm", "after": chance.randint(1, 6)}


def _in_a_call(chance: random.Random) -> Json:
    scope = chance.choice(["save", "save", "other", "other", "any"])
    calls = chance.randint(1, {"save": 70, "other": 60, "any": 150}[scope])
    return {"by": "kill", "scope": scope, "call": calls, "half": chance.choice([0, 0, 1, 50, 3000])}


def _at_a_point(chance: random.Random) -> Json:
    point = chance.choice(sorted(faults.POINTS))
    return {"by": "kill", "point": point, "call": chance.randint(1, 5)}
