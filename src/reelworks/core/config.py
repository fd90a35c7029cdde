"""Base classes of all configs, frozen and strict, and what pydantic refuses in them by field, value and remedy."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Container, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, WrapValidator
from pydantic.fields import FieldInfo

from reelworks.core import arguments, docstrings, toml_none, units, words
from reelworks.core.errors import UserError, nearest, shown

T = TypeVar("T")


class Publish(Enum):
    """Decisions on what a published recipe tells of a key; each key that may hold any text needs one.

    A recipe names folders, lists, addresses, projects and accounts, which identify files, machines and people.
    """

    AS_IS = "it says how was trained, and on what words"
    WEIGHTS = "a place of weights: the hub id if they were downloaded by it, or else a neutral word"
    WORD = "a place that a recipe needs to be complete: a neutral word takes its place"
    DEFAULT = "it is about the machine or its user: the default takes its place, of a whole table too"

    @classmethod
    def decision_on(cls, field: FieldInfo) -> Publish | None:
        """Return the decision on a key; None of one that says nothing of places or people, such as a number."""
        return next((mark for mark in field.metadata if isinstance(mark, cls)), None)


Told = Annotated[T, Publish.AS_IS]
Weights = Annotated[T, Publish.WEIGHTS]
Place = Annotated[T, Publish.WORD]
Private = Annotated[T, Publish.DEFAULT]
Elsewhere = Callable[[list[int | str], object], UserError | None]
_SHOWN = 6  # problems listed at once
_TYPE = re.compile(r".*\[.*|(constrained-)?(int|float|str)")  # what pydantic puts into places for types
_REFERENCE = "see docs/reference/recipe.md"
_LISTS = re.compile(r"\n+(?:Attributes|Examples):\n")
_TYPE_WORDS = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": 'text in quotes, as in "..."',
    "bool_type": "true or false",
    "list_type": "a list, as in [1, 17]",
    "dict_type": "a table",
    "model_type": "a table",
}


def open_set(registered: Container[str]) -> WrapValidator:
    """Let a field of some names, which its `Literal` lists, take those that a program registers, too."""
    return WrapValidator(lambda name, check: name if isinstance(name, str) and name in registered else check(name))


def _tell_meanings(schema: dict[str, Any], config: type[BaseModel]) -> None:
    """Tell in a JSON Schema what each key means."""
    schema["description"], told = about(config), meanings(config)
    for name, value in schema.get("properties", {}).items():
        value |= {"description": told[name]} if told[name] else {}


class Config(BaseModel):
    """Base of all configs: plain values; runtime objects are arguments of the owning package's `build(...)`."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        json_schema_extra=_tell_meanings,
    )


def about(config: type[BaseModel]) -> str:
    """Return what a config is, as its docstring says above the list of its keys."""
    return _LISTS.split(inspect.cleandoc(config.__doc__ or ""))[0]


def meanings(config: type[BaseModel]) -> dict[str, str]:
    """Return what the keys of a config mean, by its fields or else by "Attributes:" in its docstring and those of its bases."""
    listed = docstrings.attributes(config)
    return {name: field.description or listed.get(name, "") for name, field in config.model_fields.items()}


if TYPE_CHECKING:
    _Telling = Config
else:

    class _Calls(type(Config)):
        # A config inside another one is not made by a call, so that the error of a recipe names the whole path.
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            try:
                return super().__call__(*args, **arguments.plain(kwargs))
            except ValidationError as refused:
                error = explain(refused, cls)
            words.tell(error)
            raise error

    class _Telling(Config, metaclass=_Calls):
        pass


class PublicConfig(_Telling):
    """Base of the configs that users of the library make: wrong arguments are a `UserError` with the argument's name."""


def explain(
    error: ValidationError, config: type[BaseModel], known_elsewhere: Elsewhere = lambda path, value: None
) -> UserError:
    """Combine all problems of a config into one error: the first in full, the others below its remedy.

    Args:
        known_elsewhere: Returns the error for an unknown key, or a table in place of a list, whose meaning is known, by its path
            and value.
    """
    # An unknown key is told first: it is often the cause of the others.
    errors = sorted(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
    paths = [_path(e) for e in errors]
    # Each alternative of a union reports an error; the most specific path belongs to the intended one.
    first, *others = [
        _problem(e, config, known_elsewhere)
        for e, path in zip(errors, paths, strict=True)
        if not any(len(p) > len(path) and p[: len(path)] == path for p in paths)
    ]
    more = [f"\n  also {p.field} = {shown(p.value)}: {p.problem}; {p.remedy}" for p in others[: _SHOWN - 1]]
    return UserError(
        first.problem, code=first.code, field=first.field, value=first.value, remedy=first.remedy + "".join(more)
    )


def _problem(error: Any, config: type[BaseModel], known_elsewhere: Elsewhere) -> UserError:
    path = _path(error)
    field = ".".join(str(part) for part in path) or None  # None for a rule about several keys
    kind, value, message = error["type"], error["input"], error["msg"]
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, UserError):
        return cause
    is_one_of_list = kind == "list_type" and isinstance(value, dict)
    if (kind == "extra_forbidden" or is_one_of_list) and (known := known_elsewhere(path, value)) is not None:
        return known
    if kind == "extra_forbidden":
        remedy = nearest(str(path[-1]), _keys_beside(config, path))
        return UserError("there is no such key", code="unknown-key", field=field, value=value, remedy=remedy)
    if kind == "missing":
        return UserError("this key is required", code="key-missing", field=field, remedy=f"add {field} to the recipe")
    if kind in _TYPE_WORDS:
        return UserError("wrong type", code="wrong-type", field=field, value=value, remedy=f"give {_TYPE_WORDS[kind]}")
    if kind == "string_too_short":
        return UserError(
            "the value is empty", code="empty-value", field=field, value=value, remedy="give a text, or remove the key"
        )
    if kind in ("too_short", "too_long"):
        fewest, most, has = (error["ctx"].get(key) for key in ("min_length", "max_length", "actual_length"))
        bound = f"give at least {fewest}" if most is None else f"give at most {most}"
        problem = f"it has {units.plural(has, 'value')}"
        return UserError(problem, code="wrong-number-of-values", field=field, value=value, remedy=bound)
    if message.startswith("Input should be "):
        allowed = message.removeprefix("Input should be ")
        noun = "a number " if allowed.startswith(("greater", "less")) else ""
        suggestion = _suggestion(value, allowed) if kind == "literal_error" and isinstance(value, str) else ""
        choice = f"{suggestion}give {noun}{allowed}"
        return UserError("the value is not allowed", code="value-not-allowed", field=field, value=value, remedy=choice)
    message = message.removeprefix("Value error, ")
    return UserError(
        message[:1].lower() + message[1:], code="value-invalid", field=field, value=value, remedy=_REFERENCE
    )


def _suggestion(value: str, allowed: str) -> str:
    """Suggest the allowed value that is closest to a misspelt one, such as "AdamW"."""
    close = difflib.get_close_matches(value.casefold(), re.findall("'([^']*)'", allowed), n=1, cutoff=0.8)
    return f'did you mean "{close[0]}"? Else ' if close else ""


def _path(error: Any) -> list[int | str]:
    """Return the keys of a place without the types that pydantic adds for each alternative of a union."""
    own = len(error["loc"]) - 1 if error["type"] == "extra_forbidden" else None  # a user's key, however it is called
    return [part for i, part in enumerate(error["loc"]) if i == own or not _TYPE.fullmatch(str(part))]


def _keys_beside(config: type[BaseModel], path: Sequence[int | str]) -> list[str]:
    """Return the valid keys of the table that contains the last element of a path."""
    for part in path[:-1]:
        if isinstance(part, str):
            config = toml_none.config_in(config.model_fields[part].annotation) or config
    return list(config.model_fields)
