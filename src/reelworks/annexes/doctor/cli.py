"""`reelworks doctor`: what a machine has, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Exit, Option

from reelworks.commands import show
from reelworks.commands.exit_codes import ExitCode
from reelworks.commands.options import Json


def doctor(
    output: Annotated[Path, Option(help="A folder for runs, whose disk is looked at.")] = Path(), json: Json = False
) -> None:
    """Tell what this machine has, and what is wrong with it.

    Prints versions, cards and drivers, whether kernels of attention are right, what FFmpeg reads and writes, memory, disk
    and limits, as text that may be pasted into a report of a fault. Sends nothing anywhere. The exit code is 1 if
    something is wrong.
    """
    with show.loading():
        from reelworks.annexes.doctor import examine
    found = examine.examine(output.absolute())
    if json:
        show.json(found)
    else:
        for line in examine.lines(found):
            show.line(line)
    if found.problems:
        raise Exit(ExitCode.FAILED)
