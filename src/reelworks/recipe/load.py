"""Recipes from files: TOML, `--set` overrides, and errors that say what to type instead."""

from __future__ import annotations

import json
import tomllib
import typing
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel, ValidationError

from reelworks.core.errors import UserError, nearest
from reelworks.recipe.recipe import Recipe

_TYPE_WORDS = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": 'a text in quotes, as in "..."',
    "bool_type": "true or false",
    "list_type": "a list, as in [1, 17]",
    "dict_type": "a table",
    "model_type": "a table",
}


def load(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe.

    Args:
        path: The TOML file.
        overrides: Texts `a.b=value`; the value is TOML, or a plain text where it is not.

    Raises:
        UserError: The file is missing or not TOML, a key is unknown, a value has the wrong type.
    """
    try:
        values = tomllib.loads(path.read_text())
    except OSError as error:
        raise UserError(
            f"the recipe cannot be read ({error.strerror})",
            field="RECIPE",
            value=str(path),
            remedy="check the path; complete recipes lie in the project's recipes/ folder",
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise UserError(
            f"not TOML: {error}", field="RECIPE", value=str(path), remedy="mend that line"
        ) from error
    values.setdefault("output", f"runs/{path.stem}")
    for text in overrides:
        _override(values, text)
    return parse(values)


def parse(values: dict[str, Any]) -> Recipe:
    """Check values against the schema.

    Raises:
        UserError: With every problem, the first as its field.
    """
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        raise _explain(error) from None


def dump(recipe: Recipe) -> str:
    """Write a resolved recipe as TOML; reading it again gives an equal recipe."""
    return tomli_w.dumps(json.loads(recipe.model_dump_json(exclude_none=True)))


def _override(values: dict[str, Any], text: str) -> None:
    key, sign, raw = text.partition("=")
    if not sign or not key.strip():
        raise UserError(
            "not of the form a.b=value", field="--set", value=text, remedy="e.g. --set train.max_steps=100"
        )
    try:
        value = tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        value = raw
    *parents, last = key.strip().split(".")
    here: Any = values
    for part in parents:
        here = _descend(here, part, text)
    if isinstance(here, list):
        here[_index(here, last, text)] = value
    elif isinstance(here, dict):
        here[last] = value
    else:
        raise _no_such_place(text)


def _descend(here: Any, part: str, text: str) -> Any:
    if isinstance(here, list):
        return here[_index(here, part, text)]
    if isinstance(here, dict):
        return here.setdefault(part, {})
    raise _no_such_place(text)


def _index(here: list[Any], part: str, text: str) -> int:
    if not part.isdigit() or int(part) >= len(here):
        raise UserError(
            f'"{part}" is not one of the {len(here)} entries',
            field="--set",
            value=text,
            remedy="count from 0, as in --set bucket.0.batch_size=4",
        )
    return int(part)


def _no_such_place(text: str) -> UserError:
    return UserError(
        "there is no table of that name", field="--set", value=text, remedy="see docs/reference/recipe.md"
    )


def _explain(error: ValidationError) -> UserError:
    problems = [_problem(e) for e in error.errors()]
    field, value, problem, remedy = problems[0]
    if len(problems) > 1:
        more = "\n".join(f"  also {f} = {v!r}: {p}; {r}" for f, v, p, r in problems[1:6])
        remedy = f"{remedy}\n{more}"
    return UserError(problem, field=field, value=value, remedy=remedy)


def _problem(error: Any) -> tuple[str, Any, str, str]:
    """Field, value, problem, remedy of one pydantic error."""
    path = [
        p for p in error["loc"] if not (isinstance(p, str) and ("[" in p or p in ("int", "float", "str")))
    ]
    field = ".".join(str(p) for p in path)
    kind, value = error["type"], error["input"]
    if kind == "extra_forbidden":
        return field, value, "there is no such key", nearest(str(path[-1]), _keys_beside(path))
    if kind == "missing":
        return field, None, "this key is needed", f"add {field} to the recipe"
    if kind in _TYPE_WORDS:
        return field, value, "wrong type", f"give {_TYPE_WORDS[kind]}"
    message = error["msg"].removeprefix("Value error, ")
    return field, value, message[:1].lower() + message[1:], "see docs/reference/recipe.md"


def _keys_beside(path: Sequence[int | str]) -> Iterable[str]:
    """Keys that the table holding the last element of a path knows."""
    model: Any = Recipe
    for part in path[:-1]:
        if isinstance(part, str):
            model = _model_in(model.model_fields[part].annotation)
    return list(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel]:
    """The config class inside an annotation such as `list[X]` or `X | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in typing.get_args(annotation):
        try:
            return _model_in(inner)
        except TypeError:
            continue
    raise TypeError(f"no table in {annotation}")
