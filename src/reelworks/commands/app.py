"""Groups of commands, none of which is silent for long."""

from __future__ import annotations

import errno
import inspect
import os
import signal
import threading
import traceback
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import is_dataclass
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from reelworks.commands import show
from reelworks.core import annexes, docstrings, requests, system, terminal
from reelworks.core.annexes import AnnexCommand
from reelworks.core.errors import UserError
from reelworks.core.requests import Arg

_OPEN = "open files", "ulimit -n"
_LIMITS = {errno.EAGAIN: ("threads and processes", "ulimit -u"), errno.EMFILE: _OPEN, errno.ENFILE: _OPEN}
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]


class Commands(TyperGroup):
    """The group of all commands; one that is not understood, or that fails, is answered with JSON too, by --json."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Read the options before the command."""
        with _errors_as_json("--json" in args):
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Read the rest, and run the command."""
        with _errors_as_json("--json" in ctx.args):
            return super().invoke(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, or that of an annex from outside."""
        return super().get_command(ctx, cmd_name) or self._from_outside().get(cmd_name)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        return [*super().list_commands(ctx), *self._from_outside()]

    def _from_outside(self) -> dict[str, Any]:
        app = App()
        for name, annex in annexes.from_outside().items():
            for command in annex.commands:
                app.add(command, name)
        return dict(typer.main.get_group(app).commands)


@contextmanager
def _errors_as_json(json: bool) -> Iterator[None]:
    """Print an error that ends the command as JSON too, if it was asked for; the first of several processes does."""
    try:
        yield
    except Exception as error:
        if json and os.environ.get("RANK", "0") == "0" and not isinstance(error, typer.Exit | typer.Abort):
            show.json({"error": _in_words(error).to_json()})
        raise


def as_user_error(error: BaseException) -> UserError | None:
    """Return the error in words if it is one that the user can correct, as those of disks, paths and limits are."""
    number = errno.EAGAIN if str(error) == "can't start new thread" else getattr(error, "errno", None)
    if number in _LIMITS and (number != errno.EAGAIN or not isinstance(error, OSError) or _begins_process(error)):
        problem = f"there are as many {_LIMITS[number][0]} as the system allows ({error})"
        remedy = f"end other programs, or raise the limit: that of a shell is `{_LIMITS[number][1]}`, a container has its own"
        return UserError(problem, code="limit-reached", remedy=remedy)
    if isinstance(error, OSError):
        from reelworks.core import files  # slow to import

        if error.errno in files.OF_DISKS:
            return files.unwritable("disk", None if error.filename is None else Path(str(error.filename)), error)
        if error.filename is not None and error.errno in (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG):
            remedy = "give another path, or correct its permissions"
            problem, path = f"this cannot be opened ({error.strerror})", str(error.filename)
            return UserError(problem, code="path-unusable", field="path", value=path, remedy=remedy)
    return error if isinstance(error, UserError) else None


def _begins_process(error: OSError) -> bool:
    """Return whether a call failed that begins a process: those of locks, pipes and terminals have the same number."""
    called = (str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(name.startswith(("subprocess", "multiprocessing.popen")) for name in called)


def _in_words(error: Exception) -> UserError:
    if (known := as_user_error(error)) is not None:
        return known
    if isinstance(error, _UsageError):
        problem = error.format_message()  # type: ignore[attr-defined]
        return UserError(problem, code="command-line-invalid", remedy="see the --help of the command")
    problem = f"an unexpected error: {type(error).__name__}: {error}"
    return UserError(problem, code="defect", remedy="report it with the traceback, which is on stderr")


class _Ended(BaseException):
    """The program is asked to end."""


@contextmanager
def _unwound() -> Iterator[None]:
    """Let a signal that asks the program to end first remove what is half written and stop what was started.

    A rank of several ends at once, since others may wait for it, and so does a fork, whose files are those of its parent.
    """
    process = os.getpid()

    def stop(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)  # a second one ends at once
        if os.getpid() == process:
            raise _Ended(number)
        signal.raise_signal(number)

    may_handle = threading.current_thread() is threading.main_thread() and "RANK" not in os.environ
    numbers = system.STOPS if may_handle else ()
    handled = [number for number in numbers if signal.getsignal(number) == signal.SIG_DFL]
    for number in handled:
        signal.signal(number, stop)
    try:
        yield
    except _Ended as ended:
        signal.raise_signal(*ended.args)
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)


class App(typer.Typer):
    """A group of commands, each of which says what it is doing."""

    def command(  # type: ignore[override]
        self, name: str | None = None, *, doing: str | None, answers: bool = True, **options: Any
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Register a command; of a parameter that is a request, it has the options of the fields.

        `doing` is said on the terminal while the command has nothing else to say; None for commands that last, and speak by
        themselves. Lines of the log go to stderr if the command `answers` on stdout, or with --json, with which only warnings
        of a command that `answers` are printed.
        """

        class Speaking(TyperCommand):
            def invoke(self, ctx: Any) -> Any:
                from reelworks.core import log

                is_main, json = os.environ.get("RANK", "0") == "0", bool(ctx.params.get("json"))
                stage = nullcontext() if doing is None else log.stage(doing)
                lines = log.to_terminal(speaks=is_main, stderr=answers or json, quiet=answers and json)
                with _unwound(), lines, stage:
                    result = super().invoke(ctx)
                if answers or json:
                    terminal.require_answered()
                return result

        register = super().command(name, cls=Speaking, **options)
        return lambda function: register(_with_options(function))

    def add(self, command: AnnexCommand, annex: str = "") -> None:
        """Register a command of an annex, or a group of them."""
        found: Any = annexes.use(annex, command.place)
        if isinstance(found, typer.Typer):
            self.add_typer(found, name=command.name)
        else:
            self.command(command.name, doing=command.doing)(found)


def _with_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command whose docstring says below "Args:" what its options mean.

    Of its parameters that are requests, it has an option for each field.
    """
    others = dict(inspect.signature(function, eval_str=True).parameters)
    asked = {name: others.pop(name).annotation for name, p in list(others.items()) if is_dataclass(p.annotation)}
    text, told = docstrings.split(function.__doc__, "Args")
    for name, meaning in told.items():
        others[name].annotation.__metadata__[0].help = meaning

    def command(**values: Any) -> Any:
        for name, request in asked.items():
            own = {arg.name: values.pop(arg.name) for arg in requests.args_of(request)}
            values[name] = request(**{key: value for key, value in own.items() if value is not None})
        return function(**values)

    args = [arg for request in asked.values() for arg in requests.args_of(request)]
    options = [_parameter(arg) for arg in sorted(args, key=lambda arg: arg.is_option)]
    kept = [p.replace(kind=Parameter.KEYWORD_ONLY) for p in others.values()]
    command.__signature__ = inspect.Signature([*options, *kept])  # type: ignore[attr-defined]
    command.__name__, command.__doc__ = function.__name__, text
    return command


def _parameter(arg: Arg) -> Parameter:
    """Return a field as typer takes parameters."""
    kind, default = arg.type, Parameter.empty if arg.default is ... else arg.default
    if typing.get_origin(kind) is tuple:
        kind, default = list[typing.get_args(kind)[0]], default or None  # type: ignore[misc]
    details: dict[str, Any] = {"help": arg.help, "metavar": arg.metavar, "min": arg.least, "max": arg.most}
    if arg.parse is not None:
        details["parser"] = _parser(arg.parse)
    names = arg.names or ((arg.shown,) if kind is bool else ())
    info = typer.Option(*names, **details) if arg.is_option else typer.Argument(**details)
    return Parameter(arg.name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])


def _parser(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    def parser(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error

    return parser
