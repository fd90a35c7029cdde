"""The `reelworks` command with all its subcommands, and its handling of errors."""

from __future__ import annotations

import atexit
import importlib.metadata
import os
import re
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any

import typer

from reelworks.commands import (
    catalog,
    check,
    checkpoints,
    compare,
    contact_sheet,
    coverage,
    demo,
    encode,
    eval,
    generate,
    new,
    plan,
    replay,
    report,
    train,
    trust,
    tune,
)
from reelworks.commands.app import App, Commands, as_user_error
from reelworks.commands.exit_codes import ExitCode
from reelworks.core import annexes, machine, optional_imports, system, terminal, toml
from reelworks.core import trust as trusted_code
from reelworks.core.words import of_recipe

_PATIENCE_SECONDS = 5.0
_SETTING = re.compile(r"--[a-z_]+(\.\w+)+|[a-z_]+(\.\w+)+=")  # as other trainers take them
_NAMED = re.compile(r"(?:--?)?([a-z][a-z_-]*)(?:=.*)?")
_OTHER_OPTIONS = toml.beside(__file__, "other_options.toml")
_ELSEWHERE = {name: ways for names, ways in _OTHER_OPTIONS.items() for name in names.split()}

app = App(
    name="reelworks",
    cls=Commands,
    help="Train video and image diffusion models on footage of any shape.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    # Plain help: drawing it with rich takes longer than everything else together.
    rich_markup_mode=None,
)


def _tell_version(asked: bool) -> None:
    if asked:
        terminal.say(importlib.metadata.version("reelworks"))
        raise typer.Exit


@app.callback()
def _all_verbs(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version, and end.", callback=_tell_version, is_eager=True)
    ] = False,
) -> None:
    context.with_resource(of_recipe())


app.command("demo", doing=None, answers=False)(demo.demo)
app.command("demo-data", doing="making footage")(demo.demo_data)
app.command("demo-autoencoder", doing="training the autoencoder")(demo.demo_autoencoder)
app.command("scan", doing="scanning")(catalog.scan)
app.command("unpack", doing="unpacking")(catalog.unpack)
app.command("contact-sheet", doing="planning")(contact_sheet.contact_sheet)
app.command("plan", doing="planning")(plan.plan)
app.command("check", doing="checking dtypes and memory")(check.check)
app.command("tune", doing="measuring batch sizes")(tune.tune)
app.command("train", doing=None, answers=False)(train.train)
app.command("generate", doing="generating")(generate.generate)
app.command("eval", doing="measuring")(eval.evaluate)
app.command("coverage", doing="accounting for the clips")(coverage.coverage)
app.command("replay", doing="replaying")(replay.replay)
app.command("report", doing="writing the report")(report.report)
app.command("compare", doing="comparing")(compare.compare)
app.command("trust", doing=None)(trust.trust)
app.add_typer(catalog.app, name="catalog")
app.add_typer(new.app, name="new")
app.add_typer(encode.app, name="encode")
app.add_typer(checkpoints.app, name="checkpoints")
for each in annexes.of_house():
    for one in each.commands:
        app.add(one)


def main() -> None:
    """Run the command line; a `UserError` prints its message without a traceback."""
    # What this process starts imports nothing from the folder that it runs in, which may be a stranger's.
    os.environ["PYTHONSAFEPATH"] = "1"
    terminal.use_steady_streams()
    optional_imports.leave_out_unused()
    machine.let_mps_fall_back()
    system.allow_open_files()
    trusted_code.ask_with(trust.ask)
    if sys.flags.optimize > 1:
        terminal.say(
            "Python leaves out docstrings (-OO, or PYTHONOPTIMIZE=2), so that --help has few texts", error=True
        )
    codes: list[int] = []
    # Registered first, so called last, after the exit handlers of other modules.
    atexit.register(_leave, codes)
    if sys.argv[1:2] == ["help"]:
        sys.argv[1:] = [*sys.argv[2:], "--help"]
    try:
        app()
    except SystemExit as exit_:
        if isinstance(exit_.code, int):
            codes.append(exit_.code)
        if exit_.code == ExitCode.INTERRUPTED and os.environ.get("RANK", "0") == "0":  # once for all ranks
            terminal.say("\nstopped by Ctrl-C", error=True)  # below a progress bar that was not finished
        if exit_.code == ExitCode.BAD_INPUT:
            _tell_of_settings(sys.argv[1:])
        raise
    except Exception as error:
        _let_the_first_rank_speak()
        if (message := as_user_error(error)) is None:
            raise
        terminal.say(f"error: {message}", error=True)
        # Other ranks of a distributed run may be waiting: exiting at once lets the launcher end them.
        os._exit(ExitCode.BAD_INPUT) if "RANK" in os.environ else sys.exit(ExitCode.BAD_INPUT)


def _tell_of_settings(arguments: Sequence[str]) -> None:
    """Tell how a setting of the recipe is given, if one is among the arguments that were not understood."""
    own = _options(arguments)
    for before, argument in pairwise(["", *arguments]):
        if "--set" in own and before != "--set" and _SETTING.match(argument):
            name, is_equal, value = argument.removeprefix("--").partition("=")
            setting = system.quoted(f"{name}={value if is_equal else 'VALUE'}")
            terminal.say(f"Settings of the recipe follow --set: --set {setting}", error=True)
            return
    for before, argument in pairwise(["", *arguments]):
        if argument.partition("=")[0] in own:
            continue
        found = _NAMED.fullmatch(argument) if argument.startswith("-") or "=" in argument else None
        ways = _ELSEWHERE.get(found[1].replace("-", "_"), []) if before != "--set" and found else []
        if here := [way for way in ways if way.split()[0] in own]:
            terminal.say(f"Here {argument.partition('=')[0]} is {', or '.join(here)}", error=True)
            return


def _options(arguments: Sequence[str]) -> set[str]:
    """Return the names of the options that the command has."""
    command: Any = typer.main.get_command(app)
    for word in arguments:
        if not hasattr(command, "get_command") or (below := command.get_command(typer.Context(command), word)) is None:
            break
        command = below
    return {name for parameter in command.params for name in parameter.opts}


def _leave(codes: list[int]) -> None:
    """End the process with its exit code before the interpreter is torn down.

    gloo's threads may outlive their process group, which caches of DTensor hold, and free the tensors of the last
    collective late. Without an interpreter that aborts the process, and a finished run would be reported as failed.
    """
    if codes:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # None if the caller closed it
                stream.flush()
        os._exit(codes[0])


def _let_the_first_rank_speak() -> None:
    """Give rank 0 time to print the same error, and the launcher time to end this process."""
    if os.environ.get("RANK", "0") != "0":
        time.sleep(_PATIENCE_SECONDS)
