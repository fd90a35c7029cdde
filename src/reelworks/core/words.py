"""Tell mistakes in the words of the caller: recipe keys and options of commands, or arguments of the library.

Checks are written once, and name recipe keys. A function of the library that `tells_arguments` names arguments in their place,
unless a command or a training of a recipe calls it, which runs in `of_recipe`.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from reelworks.core import toml
from reelworks.core.errors import UserError

P = ParamSpec("P")
R = TypeVar("R")

_WORDS = toml.beside(__file__, "words.toml")
_TABLES, _FIELDS = _WORDS["tables"], _WORDS["fields"]
# A key, and its value if it follows.
_KEYS = "|".join(rf"{table}\.(?:{'|'.join(words['keys'])})" for table, words in _TABLES.items())
_KEY = re.compile(rf"""\b({_KEYS})\b(?: = ("[^"]*"|true|false|[\d.]+\b))?""")
_PYTHON = {"true": "True", "false": "False"}
_recipes = 0  # commands and trainings of recipes that run now


@contextmanager
def of_recipe() -> Iterator[None]:
    """Let errors name recipe keys and options: a command, or the training of a recipe, is running."""
    global _recipes
    _recipes += 1
    try:
        yield
    finally:
        _recipes -= 1


def names_options() -> bool:
    """Return whether messages name recipe keys and options, since a command or the training of a recipe is running."""
    return _recipes > 0


def tells_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Let the errors of a function or generator of the library name arguments."""
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def yielding(*args: P.args, **kwargs: P.kwargs) -> Any:
            with _retold(tell):
                yield from function(*args, **kwargs)

        return yielding
    return _retold(tell)(function)


@contextmanager
def _retold(retell: Callable[[UserError], None]) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        if not _recipes:
            retell(error)
        raise


def named(**arguments: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let the errors of a function name these arguments in place of fields, where its own names differ."""
    return _retold(lambda error: error.reword(field=arguments.get(error.field or "", error.field)))


def tell(error: UserError) -> None:
    """Let an error name arguments in place of recipe keys, unless a recipe is at work."""
    if not _recipes:
        error.reword(field=field_of(error.field), problem=text_of(error.problem), remedy=text_of(error.remedy))


def field_of(field: str | None) -> str | None:
    """Return the argument of a recipe key or option."""
    if field is None:
        return None
    if field.startswith("--"):
        return field.removeprefix("--").replace("-", "_")
    if field.startswith("dataset '"):
        return "folders"
    table, _, key = field.partition(".")
    return key.removeprefix("mirror.") if key and table in _TABLES else _FIELDS.get(field, field)


def text_of(text: str) -> str:
    """Return a sentence with arguments in place of recipe keys."""
    for phrase, words in _WORDS["phrases"]:
        text = re.sub(phrase, words, text)
    return _KEY.sub(_argument, text)


def _argument(match: re.Match[str]) -> str:
    (table, _, key), value = match[1].partition("."), match[2]
    owner = _TABLES[table]["class"]
    return f"{key} of {owner}" if value is None else f"{owner}({key}={_PYTHON.get(value, value)})"
