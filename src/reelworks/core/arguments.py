"""Check the arguments of the library's public functions and classes, by a kind beside each.

    @checked(micro_batches_per_step=optional(whole(1)), decode_timeout=number(above=0))
    def __init__(self, ..., *, micro_batches_per_step: int | None = None, decode_timeout: float = 120.0) -> None: ...

A dataclass annotates its fields, as in `seed: Annotated[int, whole(0)]`, and calls `check(self)` in `__post_init__`.
A wrong argument is a `UserError` whose field is its name. What has another type but the same meaning is converted:
numpy's numbers, paths as texts, tuples in place of lists.
"""

from __future__ import annotations

import errno
import functools
import inspect
import math
import numbers
import operator
import os
import reprlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, get_type_hints

from reelworks.core import words
from reelworks.core.errors import UserError

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Kind:
    """A rule for the values of an argument.

    Attributes:
        meaning: What is expected, as in "a whole number of at least 1".
        read: Returns the argument, perhaps converted; raises TypeError or ValueError if it is something else.
        remedy: What to give instead, if the meaning does not say it.
    """

    meaning: str
    read: Callable[[Any], Any]
    remedy: str | None = None


def whole(least: int | None = None, most: int | None = None) -> Kind:
    """Whole numbers within bounds; True and False are none."""

    def read(value: Any) -> int:
        if isinstance(value, bool):
            raise TypeError
        return int(_within(operator.index(value), least, most))

    return Kind(f"a whole number{_bounds(least, most)}", read)


def number(least: float | None = None, most: float | None = None, *, above: float | None = None) -> Kind:
    """Finite numbers within bounds; `above` is a bound that is not allowed itself."""

    def read(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise TypeError
        if not math.isfinite(value) or (above is not None and value <= above):
            raise ValueError
        _within(value, least, most)
        return value if isinstance(value, int) else float(value)

    bounds = _bounds(least, most) if above is None else f" above {above:g}"
    return Kind(f"a finite number{bounds}", read)


def that(meaning: str, is_meant: Callable[[Any], object], remedy: str | None = None) -> Kind:
    """Values that a test tells, as they are."""

    def read(value: Any) -> Any:
        if not is_meant(value):
            raise TypeError
        return value

    return Kind(meaning, read, remedy)


def a(*types: type, remedy: str | None = None) -> Kind:
    """Objects of some types."""
    return that(" or ".join(map(_with_article, types)), lambda value: isinstance(value, types), remedy)


def one_of(*values: Any) -> Kind:
    """One of some plain values."""
    meaning = " or ".join(map(repr, values))
    return that(meaning, lambda value: any(type(value) is type(each) and value == each for each in values))


def optional(kind: Kind) -> Kind:
    """The values of a kind, or None."""
    return Kind(f"{kind.meaning}, or None", lambda value: None if value is None else kind.read(value), kind.remedy)


def each(kind: Kind, *, into: Callable[[Iterable[Any]], Any] = list) -> Kind:
    """Iterables of values of a kind, which are turned into a list; texts are none."""

    def read(value: Any) -> Any:
        if isinstance(value, str | bytes | Mapping):
            raise TypeError
        return into([kind.read(one) for one in value])

    return Kind(f"a list, with each element {kind.meaning}", read, kind.remedy)


def one_or_each(kind: Kind) -> Kind:
    """A value of a kind, or a list of such values."""
    several = each(kind)
    meaning = f"{kind.meaning}, or a list of such"
    return Kind(meaning, lambda value: (several if isinstance(value, list | tuple) else kind).read(value))


def exactly(count: int, kind: Kind) -> Kind:
    """So many values of a kind, as a tuple."""

    def read(value: Any) -> tuple[Any, ...]:
        values: tuple[Any, ...] = each(kind, into=tuple).read(value)
        if len(values) != count:
            raise ValueError
        return values

    return Kind(f"{count} values, with each {kind.meaning}", read)


def any_of(*kinds: Kind) -> Kind:
    """The values of several kinds."""

    def read(value: Any) -> Any:
        for kind in kinds:
            with suppress(TypeError, ValueError, AttributeError):
                return kind.read(value)
        raise TypeError

    return Kind(", or ".join(kind.meaning for kind in kinds), read)


def plain(value: Any) -> Any:
    """Return a value of the same meaning in plain types: a path as text, numpy's numbers as Python's, a tuple as a list."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, numbers.Real) and not isinstance(value, bool | int | float):
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    return value


def _read_file(value: Any) -> str:
    if not isinstance(file := os.fspath(value), str) or not file or "\0" in file:
        raise TypeError
    if "://" not in file:
        try:
            Path(file).stat()
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                raise ValueError from error
    return file


def _read_device(value: Any) -> Any:
    import torch

    device = torch.device("cuda", value) if type(value) is int else torch.device(value)
    if device.type == "cuda":  # a tensor there would take memory of the GPU
        if (device.index or 0) >= torch.cuda.device_count():
            raise ValueError
        return device
    try:
        torch.empty(0, dtype=torch.uint8, device=device)
    except (AssertionError, ImportError) as error:  # of builds without it
        raise ValueError from error
    return device


DEVICE = Kind("a device of torch that this machine has", _read_device)
PATH = Kind("a path that this system can have", lambda value: Path(_read_file(value)))
# As a text, which may be an address: a Path would have one slash of its two.
FILE = Kind("a path that this system can have", _read_file)
FLAG = one_of(True, False)
TEXT = that("a text that is not empty", lambda value: isinstance(value, str) and value)
FUNCTION = that("a function", callable)


def checked(**kinds: Kind) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Check the arguments of a function, and let its errors name arguments."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        assert kinds.keys() <= signature.parameters.keys()
        telling = words.tells_arguments(function)

        @functools.wraps(function)
        def checking(*args: P.args, **kwargs: P.kwargs) -> R:
            bound = signature.bind(*args, **kwargs)
            for name in bound.arguments.keys() & kinds.keys():
                bound.arguments[name] = checked_value(name, bound.arguments[name], kinds[name])
            return telling(*bound.args, **bound.kwargs)

        return checking

    return decorate


@functools.cache
def _kinds_of(owner: type) -> dict[str, Kind]:
    hints = get_type_hints(owner, include_extras=True)
    kinds = ((name, kind) for name, hint in hints.items() for kind in getattr(hint, "__metadata__", ()))
    return {name: kind for name, kind in kinds if isinstance(kind, Kind)}


def check(owner: Any, kinds: Mapping[str, Kind] | None = None) -> None:
    """Check the fields of a dataclass that was just made, by the kinds that annotate them, or by others."""
    for name, kind in (_kinds_of(owner.__class__) if kinds is None else kinds).items():
        value = getattr(owner, name)
        read = checked_value(name, value, kind)
        if read is not value:
            object.__setattr__(owner, name, read)


def refuse_of_recipes(given: Mapping[str, Any], of_recipes: set[str], remedy: str = "leave it out") -> None:
    """Refuse keys of a config, among those that are given, which have no effect in the library."""
    for key in sorted(given.keys() & of_recipes):
        raise UserError("only a recipe uses it", code="key-of-recipes", field=key, value=given[key], remedy=remedy)


def checked_value(name: str, value: Any, kind: Kind) -> Any:
    """Return an argument as its kind reads it.

    Raises:
        UserError: It is something else.
    """
    with suppress(TypeError, ValueError, AttributeError, RuntimeError):  # the last one for devices of torch
        return kind.read(value)
    plain = isinstance(value, str | int | float)
    raise UserError(
        f"not {kind.meaning}" if plain else f"{_with_article(type(value))}, not {kind.meaning}",
        code="argument-invalid",
        field=name,
        value=value if plain or value is None else _Short(value),
        remedy=kind.remedy or f"give {kind.meaning}",
    )


class _Short:
    """A value that is printed in a line."""

    def __init__(self, value: object) -> None:
        is_told = isinstance(value, list | tuple | dict | set | os.PathLike)
        self._text = reprlib.repr(value) if is_told else f"<{type(value).__name__}>"

    def __repr__(self) -> str:
        return self._text


def _within(value: Any, least: float | None, most: float | None) -> Any:
    if (least is not None and value < least) or (most is not None and value > most):
        raise ValueError
    return value


def _bounds(least: float | None, most: float | None) -> str:
    if least is not None and most is not None:
        return f" from {least:g} to {most:g}" if most < 1 << 53 else f" of at least {least:g}"
    return "" if least is None else f" of at least {least:g}"


def _with_article(kind: type) -> str:
    name = "None" if kind is type(None) else kind.__name__
    return name if name == "None" else f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
