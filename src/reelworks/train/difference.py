"""What a resume finds changed in the recipe, as lines for people."""

from __future__ import annotations

import tomllib

from reelworks.recipe import difference
from reelworks.recipe.recipe import Recipe
from reelworks.run import coverage as told
from reelworks.run.folder import RunFolder

# How many changed keys are told one by one.
_SHOWN = 12


def of_recipes(folder: RunFolder, step: int, now: Recipe) -> list[str]:
    """Compare the recipe that a step was trained by with the present one, key by key."""
    try:
        then = tomllib.loads(told.recipe_of(folder, step).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    changed = difference.changes(then, difference.values(now))
    lines = [f"{one.key}: {one.before} then, {one.after} now" for one in changed]
    more = len(lines) - _SHOWN
    return lines[:_SHOWN] + ([f"and {more} more keys of the recipe"] if more > 0 else [])
