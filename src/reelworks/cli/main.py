"""The `reelworks` command with all its subcommands, and its handling of errors."""

from __future__ import annotations

import atexit
import os
import re
import shlex
import sys
import time
from collections.abc import Sequence
from itertools import pairwise

import typer

from reelworks.cli import (
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
    import_opensora,
    new,
    plan,
    replay,
    report,
    train,
    tune,
    ui,
)
from reelworks.cli.exit_codes import ExitCode
from reelworks.core.errors import UserError

_PATIENCE_SECONDS = 5.0
_SETTING = re.compile(r"--[a-z_]+(\.\w+)+|[a-z_]+(\.\w+)+=")  # as other trainers take them

app = typer.Typer(
    name="reelworks",
    help="Train video and image diffusion models on footage of any shape.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Plain help: drawing it with rich takes longer than everything else together.
    rich_markup_mode=None,
)
app.command("demo")(demo.demo)
app.command("demo-data")(demo.demo_data)
app.command("scan")(catalog.scan)
app.command("inspect")(catalog.inspect)
app.command("contact-sheet")(contact_sheet.contact_sheet)
app.command("plan")(plan.plan)
app.command("check")(check.check)
app.command("tune")(tune.tune)
app.command("train")(train.train)
app.command("generate")(generate.generate)
app.command("eval")(eval.evaluate)
app.command("coverage")(coverage.coverage)
app.command("replay")(replay.replay)
app.command("report")(report.report)
app.command("compare")(compare.compare)
app.command("ui")(ui.ui)
app.command("import-opensora")(import_opensora.import_opensora)
app.add_typer(catalog.app, name="catalog")
app.add_typer(new.app, name="new")
app.add_typer(encode.app, name="encode")
app.add_typer(checkpoints.app, name="checkpoints")


def main() -> None:
    """Run the command line; a `UserError` prints its message without a traceback."""
    codes: list[int] = []
    # Registered first, so called last, after the exit handlers of other modules.
    atexit.register(_leave, codes)
    try:
        app()
    except SystemExit as exit_:
        if isinstance(exit_.code, int):
            codes.append(exit_.code)
        if exit_.code == ExitCode.INTERRUPTED:
            _tell_of_ctrl_c()
        if exit_.code == ExitCode.BAD_INPUT:
            _tell_of_settings(sys.argv[1:])
        raise
    except UserError as error:
        _let_the_first_rank_speak()
        print(f"error: {error}", file=sys.stderr, flush=True)
        # Other ranks of a distributed run may be waiting: exiting at once lets the launcher end them.
        os._exit(ExitCode.BAD_INPUT) if "RANK" in os.environ else sys.exit(ExitCode.BAD_INPUT)
    except KeyboardInterrupt:  # outside the command, which handles its own
        _tell_of_ctrl_c()
        sys.exit(ExitCode.INTERRUPTED)
    except Exception:
        _let_the_first_rank_speak()
        raise


def _tell_of_ctrl_c() -> None:
    """Print a line of its own, below a progress bar that was not finished; once for all ranks."""
    if os.environ.get("RANK", "0") == "0":
        print("\nstopped by Ctrl-C", file=sys.stderr, flush=True)


def _tell_of_settings(arguments: Sequence[str]) -> None:
    """Tell how a setting of the recipe is given, if one is among the arguments that were not understood."""
    for before, argument in pairwise(["", *arguments]):
        if before != "--set" and _SETTING.match(argument):
            name, is_equal, value = argument.removeprefix("--").partition("=")
            setting = shlex.quote(f"{name}={value if is_equal else 'VALUE'}")
            print(f"Settings of the recipe follow --set: --set {setting}", file=sys.stderr)
            return


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
