"""Compare two recipes key by key, and tell what a resume finds changed."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from typing import Any

from reelworks.core import toml_none
from reelworks.recipe.recipe import Recipe
from reelworks.run import history
from reelworks.run.folder import RunFolder

NOT_SET = "not set"


@dataclass(frozen=True)
class Change:
    """A key whose value differs.

    Attributes:
        key: Dotted, with numbers for entries of lists of tables: `bucket.0.batch_size`.
        before, after: Values, or "not set" where a recipe does not have the key.
    """

    key: str
    before: Any
    after: Any


def values(recipe: Recipe) -> dict[str, Any]:
    """A resolved recipe as nested plain values, as its TOML has them."""
    return toml_none.to_toml(recipe)


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[Change]:
    """Keys of two recipes' values that differ, by name."""
    a, b = _flat(before), _flat(after)
    changed = sorted(key for key in a.keys() | b.keys() if a.get(key) != b.get(key))
    return [Change(key, a.get(key, NOT_SET), b.get(key, NOT_SET)) for key in changed]


def _flat(nested: Any, prefix: str = "") -> dict[str, Any]:
    """Nested tables and lists of tables as dotted keys."""
    items = nested.items() if isinstance(nested, dict) else enumerate(nested)
    flat: dict[str, Any] = {}
    for key, value in items:
        tables = isinstance(value, list) and any(isinstance(one, dict) for one in value)
        if isinstance(value, dict) or tables:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


# How many changed keys are told one by one.
_SHOWN = 12


def of_recipes(folder: RunFolder, step: int, now: Recipe) -> list[str]:
    """Compare the recipe that a step was trained by with the present one, key by key."""
    try:
        then = tomllib.loads(history.recipe_of(folder, step).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    changed = changes(then, values(now))
    lines = [f"{one.key}: {one.before} then, {one.after} now" for one in changed]
    more = len(lines) - _SHOWN
    return lines[:_SHOWN] + ([f"and {more} more keys of the recipe"] if more > 0 else [])
