"""What a resume finds changed in the recipe, as lines for people."""

from __future__ import annotations

import tomllib
from typing import Any

from reelworks.recipe import load
from reelworks.recipe.recipe import Recipe
from reelworks.run.folder import RunFolder

# How many changed keys are told one by one.
_SHOWN = 12


def of_recipes(folder: RunFolder, now: Recipe) -> list[str]:
    """Compare the recipe that the run's latest start wrote with the present one, key by key."""
    try:
        then = _flat(tomllib.loads(folder.recipe_file.read_text()))
    except (OSError, tomllib.TOMLDecodeError):
        return []
    present = _flat(tomllib.loads(load.dump(now)))
    changed = sorted(key for key in then.keys() | present.keys() if then.get(key) != present.get(key))
    lines = [f"{key}: {then.get(key, 'not set')} then, {present.get(key, 'not set')} now" for key in changed]
    more = len(lines) - _SHOWN
    return lines[:_SHOWN] + ([f"and {more} more keys of the recipe"] if more > 0 else [])


def _flat(values: Any, prefix: str = "") -> dict[str, Any]:
    """Nested tables and lists of tables as dotted keys."""
    items = values.items() if isinstance(values, dict) else enumerate(values)
    flat: dict[str, Any] = {}
    for key, value in items:
        tables = isinstance(value, list) and any(isinstance(one, dict) for one in value)
        if isinstance(value, dict) or tables:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
