"""Requests: frozen dataclasses of what a command, and the function of the library behind it, is asked for.

    @dataclass(frozen=True, kw_only=True)
    class EvalRequest:
        source: Path | None = arg(None, metavar="RUN|RECIPE", is_option=False)
        timesteps: int = arg(10, least=0, most=1000, metavar="N")

        def __post_init__(self) -> None:
            with requests.checked(self):
                ...  # raise a `UserError` for fields that do not go together

A field is declared once: its type and bounds are checked when a request is made, and the command line makes an option of it,
whose help is what the docstring of the class says of it below "Attributes:". Checks name fields in `UserError.field`, and
options in sentences; while a command is running, both are its options, and else both are the fields.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import types
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reelworks.core import arguments, docstrings, words
from reelworks.core.arguments import Kind
from reelworks.core.errors import UserError

OVERRIDES = "Override a recipe key; may be given several times. The value is TOML, or else plain text. stage=NAME chooses a stage."
DATA_PATH = "Train on this folder or list only, with the options of the first dataset; wins over datasets of --set."
HTML = "Also write it as one self-contained HTML file."
_OPTION = re.compile(r"--[a-z][a-z-]*")


@dataclass(frozen=True)
class Arg:
    """A field of a request, as the command line shows it.

    Attributes:
        help: What it means, with its unit and its default; by default what the docstring of the class says of it.
        least: Smallest number that is allowed.
        most: Largest number that is allowed.
        names: Names of its option, with that of its opposite behind a slash; empty for its own name.
        metavar: What its value is called.
        is_option: It is an option, and not an argument without a name.
        parse: Returns its value from a text; raises ValueError with a sentence.
        name: Its name, with its type and its default, which is `...` if it is needed.
    """

    help: str
    least: float | None = None
    most: float | None = None
    names: tuple[str, ...] = ()
    metavar: str | None = None
    is_option: bool = True
    parse: Callable[[str], Any] | None = None
    name: str = ""
    type: Any = None
    default: Any = ...

    @property
    def shown(self) -> str:
        """Its name in messages of the command line."""
        return self.all_shown[0]

    @property
    def all_shown(self) -> list[str]:
        """Its name in messages of the command line, and that of its opposite if it has one."""
        own = f"--{self.name.replace('_', '-')}" if self.is_option else self.metavar or self.name.upper()
        return self.names[0].split("/") if self.names else [own]


def arg(default: Any, help: str = "", **details: Any) -> Any:
    """Return a field of a request, which is needed if its default is `...`; `details` are those of `Arg`."""
    known: dict[str, Any] = {} if default is ... else {"default": default}
    return dataclasses.field(**known, metadata={"arg": Arg(help, default=default, **details)})


@functools.cache
def args_of(request: type) -> tuple[Arg, ...]:
    """Return the fields of a class of requests."""
    hints, told, fields = typing.get_type_hints(request), docstrings.attributes(request), dataclasses.fields(request)
    args: list[tuple[str, Arg]] = [(field.name, field.metadata["arg"]) for field in fields]
    return tuple(replace(arg, name=n, type=hints[n], help=arg.help or told.get(n, "")) for n, arg in args)


def _kind(annotation: Any, arg: Arg) -> Kind:
    inner = typing.get_args(annotation)
    if types.NoneType in inner:
        return arguments.optional(_kind(inner[0], arg))
    if typing.get_origin(annotation) is tuple:
        one = _kind(inner[0], arg)
        read = arguments.each(one, into=tuple).read
        meaning = f"{one.meaning}, or a list of such"
        return Kind(meaning, lambda value: read(value if isinstance(value, list | tuple) else [value]))
    if typing.get_origin(annotation) is typing.Literal:
        return arguments.one_of(*inner)
    if annotation is int:
        return arguments.whole(arg.least, arg.most)  # type: ignore[arg-type]
    if annotation is float:
        return arguments.number(arg.least, arg.most)
    return {Path: arguments.PATH, bool: arguments.FLAG}.get(annotation) or arguments.a(annotation)


@contextmanager
def checked(request: Any) -> Iterator[None]:
    """Check the fields of a request that was just made, and tell mistakes that are found in what follows."""
    kind: type = type(request)
    with telling(kind):
        arguments.check(request, {arg.name: _kind(arg.type, arg) for arg in args_of(kind)})
        yield


@contextmanager
def telling(request: type) -> Iterator[None]:
    """Let errors name options while a command is running, and else the fields of a request; also as a decorator."""
    try:
        yield
    except UserError as error:
        args = args_of(request)
        if words.names_options():
            options = {arg.name: arg.shown for arg in args}
            error.reword(field=options.get(error.field or "", error.field))
        else:
            _name_fields(error, {shown: arg.name for arg in args for shown in arg.all_shown})
        raise


def _name_fields(error: UserError, names: dict[str, str]) -> None:
    def named(text: str) -> str:
        return _OPTION.sub(lambda option: names.get(option[0], option[0]), words.text_of(text))

    field = names.get(error.field or "", error.field)
    if field not in names.values():
        field = words.field_of(None if field is None else named(field))
    error.reword(field=field, problem=named(error.problem), remedy=named(error.remedy))
