"""Values that strangers write: numbers, switches and texts, also written as texts, and nothing else."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from itertools import pairwise
from typing import Any

MOST = 2**40  # of anything that is counted
_NAME_NOTHING = {"transformer", "unet", "snapshots", "split_files", "diffusion_models"}  # folders of all releases


def number(value: Any, low: float = -math.inf, high: float = math.inf) -> float:
    """Return a number, which may be written as a text; raises `ValueError` for others, and out of the range."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("no number")
    found = float(value)
    if not (math.isfinite(found) and low <= found <= high):
        raise ValueError("out of range")
    return found


def whole(value: Any, low: int = 1, high: int = MOST) -> int:
    """Return a whole number, likewise; what follows the decimal point is cut off."""
    return int(number(value, low, high))


def number_of(value: Any) -> float:
    """Return a number that a recipe can have, likewise."""
    return number(value, -1e18, 1e18)


def whole_of(value: Any) -> int:
    """Return a whole number, likewise; raises `ValueError` for one with a fraction."""
    found = number_of(value)
    if found != int(found):
        raise ValueError("no whole number")
    return int(found)


def flag(value: Any) -> bool:
    """Return a switch; raises `ValueError` for what is none."""
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise ValueError("no switch")
    return value


def is_on(value: Any) -> bool:
    """Whether a switch is on; texts of a command line are read as the trainer's parser means them."""
    return value is True or (isinstance(value, str) and value.lower() in ("true", "1", "yes"))


def means(value: Any, wanted: Any) -> bool:
    """Whether a value is one that a table names: texts may have capitals, and numbers and switches be written as texts."""
    if not isinstance(value, str):
        return bool(value == wanted)
    if isinstance(wanted, bool):
        return is_on(value) if wanted else value.lower() == "false"
    with suppress(ValueError):
        return value.lower() == wanted.lower() if isinstance(wanted, str) else number(value) == wanted
    return False


def text(value: Any) -> str:
    """Return a text that is not empty; raises `ValueError` for others."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("no text")
    return value


def ends_of(path: str) -> str:
    """Return the last two parts of a path that name something: a release, and a file or folder in it."""
    parts = re.split(r"[/\\]+", path.rstrip("/\\"))
    named = [part for before, part in pairwise(["", *parts]) if before != "snapshots" and part not in _NAME_NOTHING]
    return "/".join(named[-2:])


def expert_of(path: str) -> str | None:
    """Return which network of two the names at the end of a path tell, the file's first: "high", "low" or None."""
    found = [re.search(r"(?<![a-z])(high|low)(?=noise|[^a-z]|$)", name.casefold()) for name in ends_of(path).split("/")]
    return next((each[1] for each in reversed(found) if each), None)


def range_of(low: float, high: float, value: float) -> float:
    """Return the nearest value in a range."""
    return min(max(value, low), high)
