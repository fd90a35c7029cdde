"""Explain mistakes in a recipe by field, value and remedy."""

from __future__ import annotations

import re
from functools import cache
from typing import get_origin

from pydantic import BaseModel, ValidationError

from reelworks.core import config, toml, toml_none
from reelworks.core.errors import UserError
from reelworks.training.recipe import stages
from reelworks.training.recipe.recipe import Recipe

_OTHER_KEYS = toml.beside(__file__, "other_keys.toml")
_RENAMED, _ELSEWHERE = _OTHER_KEYS["renamed"], _OTHER_KEYS["elsewhere"]  # in earlier versions, and in other trainers
_FEW = 4  # places of one key that are told


def explain(error: ValidationError) -> UserError:
    """Combine all problems of a recipe into one error: the first in full, the others below its remedy."""
    return config.explain(error, Recipe, _known_elsewhere)


def _known_elsewhere(path: list[int | str], value: object) -> UserError | None:
    """Return the error for a key of an earlier version, another trainer or another table, and for one table of a list."""
    field, keys = ".".join(map(str, path)), [part for part in path if isinstance(part, str)]
    if isinstance(value, dict) and keys[-1] in ("stage", *stages.LISTS) and keys[:-1] in ([], ["stage"]):
        remedy = f"write it as [[{'.'.join(keys)}]], with two brackets"
        return UserError(
            "it is one table, not a list of them", code="wrong-type", field=field, value=value, remedy=remedy
        )
    new = _RENAMED.get(".".join(keys))
    if new is not None:
        return UserError("this key was renamed", code="renamed-key", field=field, value=value, remedy=f"write {new}")
    if path[0] == "stage" and len(path) == 3 and path[2] in Recipe.model_fields:
        return UserError(
            "it is the same in all stages",
            code="not-of-a-stage",
            field=field,
            value=value,
            remedy="set it for the whole recipe; a stage may change " + ", ".join(stages.KEYS),
        )
    elsewhere = _ELSEWHERE.get(_bare(path[-1])) or _in_another_table(keys)
    if elsewhere is None:
        return None
    return UserError("there is no such key", code="unknown-key", field=field, value=value, remedy=f"write {elsewhere}")


def _bare(key: int | str) -> str:
    return re.sub("[_-]", "", str(key).casefold())


def _in_another_table(keys: list[str]) -> str | None:
    """Return where a key of the recipe belongs that is written elsewhere; None if there is no such key, or many are."""
    places = [place for place in _places().get(_bare(keys[-1]), ()) if place != ".".join(keys)]
    if keys[0] == "stage":
        places = [f"stage.{place}" for place in places if place.split(".")[0] in stages.KEYS]
    if not 0 < len(places) < _FEW:
        return None
    if places[0] not in Recipe.model_fields:
        return " or ".join(places)
    kind = Recipe.model_fields[places[0]].annotation
    if toml_none.config_in(kind) is None:
        return f"{places[0]} at the top of the recipe, above the first [table]"
    return f"it as [[{places[0]}]]" if get_origin(kind) is list else f"it as [{places[0]}]"


@cache
def _places() -> dict[str, list[str]]:
    """Return the places of all keys of a recipe, those of stages left out, by their names."""
    found: dict[str, list[str]] = {}

    def walk(config: type[BaseModel], before: str) -> None:
        for name, field in config.model_fields.items():
            found.setdefault(_bare(name), []).append(before + name)
            inner = toml_none.config_in(field.annotation)
            if inner is not None and inner is not stages.StageConfig:
                walk(inner, f"{before}{name}.")

    walk(Recipe, "")
    return found
