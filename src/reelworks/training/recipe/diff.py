"""Compare two recipes key by key, and describe the changes since an earlier step."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from reelworks.core import toml_none, user_files
from reelworks.core.errors import UserError
from reelworks.data.run import history
from reelworks.data.run.folder import RunFolder
from reelworks.training.recipe import annex_tables
from reelworks.training.recipe.recipe import Recipe

NOT_SET = "not set"


class KeyChange(NamedTuple):
    """A dotted recipe key, such as `bucket.0.batch_size`, with its differing values, or "not set" without it."""

    key: str
    before: Any
    after: Any


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[KeyChange]:
    """Return the keys in which the values of two recipes differ, sorted."""
    a, b = flat(before), flat(after)
    changed = sorted(key for key in a.keys() | b.keys() if a.get(key) != b.get(key))
    return [KeyChange(key, a.get(key, NOT_SET), b.get(key, NOT_SET)) for key in changed]


def flat(nested: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested tables and lists of tables as a dictionary with dotted keys."""
    items = nested.items() if isinstance(nested, dict) else enumerate(nested)
    found: dict[str, Any] = {}
    for key, value in items:
        tables = isinstance(value, list) and any(isinstance(item, dict) for item in value)
        if isinstance(value, dict) or tables:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def by_steps(run: RunFolder, last: float) -> dict[str, list[tuple[float, Any]]]:
    """Return the values of each key in the recipes that trained a run up to a step, each with the last step that it trained.

    A key that never changed has one. Recipes that cannot be read are passed over.
    """
    recipes = list[tuple[float, dict[str, Any]]]()
    for part in history.parts(run, last):
        with suppress(OSError, ValueError):
            recipes.append((part.last, flat(_read(part.recipe))))
    found: dict[str, list[tuple[float, Any]]] = {}
    for key in sorted({key for _, recipe in recipes for key in recipe}):
        values = [(step, recipe.get(key, NOT_SET)) for step, recipe in recipes]
        pairs = zip(values, [*values[1:], None], strict=True)
        found[key] = [value for value, following in pairs if following is None or value[1] != following[1]]
    return found


def as_told(values: list[tuple[float, Any]]) -> Any:
    """Return the value of a key, or a text of those that it had one after the other, such as "0.001 to step 500, 0.0001"."""
    *former, (_, now) = values
    return ", ".join([*(f"{value} to step {step:,.0f}" for step, value in former), str(now)]) if former else now


_SHOWN = 12  # changed keys listed one by one


def since(file: Path, now: Recipe) -> list[KeyChange]:
    """Return the changes since the recipe that a run kept in a file; none if it cannot be read."""
    with suppress(OSError, ValueError):
        return changes(_read(file), toml_none.to_toml(now))
    return []


def _read(file: Path) -> dict[str, Any]:
    """Return the values of a kept recipe, with the defaults of keys that its version did not have, if this one reads it."""
    values = user_files.read_toml(file)
    with suppress(ValidationError, UserError), annex_tables.may_be_missing():
        return toml_none.to_toml(Recipe.model_validate(toml_none.from_toml(values, Recipe)))
    return values


def since_step(folder: RunFolder, step: int, now: Recipe) -> list[KeyChange]:
    """Return the changes since the recipe with which a step was trained."""
    return since(history.recipe_of(folder, step), now)


def lines(found: Iterable[KeyChange]) -> list[str]:
    """Describe changes since an earlier recipe, a line for each key."""
    told = [f"{change.key}: {change.before} then, {change.after} now" for change in found]
    more = len(told) - _SHOWN
    return told[:_SHOWN] + ([f"and {more} more keys of the recipe"] if more > 0 else [])
