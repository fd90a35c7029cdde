"""`reelworks ui`: a local page with data, plans and runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from reelworks.annexes.page.annex import ANNEX
from reelworks.commands import show


def ui(
    folders: Annotated[
        list[Path] | None,
        Argument(metavar="[FOLDER]...", help="Folders with runs, recipes and footage; default: the current one."),
    ] = None,
    port: Annotated[
        int | None, Option(min=1, max=65535, help="Port; default: the first free one from 8384 on.")
    ] = None,
    host: Annotated[
        str, Option(help="Address to listen on; 0.0.0.0, which other machines reach, needs the token for reading, too.")
    ] = "127.0.0.1",
    open: Annotated[bool, Option("--open", help="Open the page in a browser.")] = False,
    end_jobs: Annotated[bool, Option("--end-jobs", help="End all that a page of FOLDER started, and wait.")] = False,
) -> None:
    """Serve a local page: footage and what becomes of each clip, plans to try, and runs as they train.

    Listens on this machine alone unless --host says otherwise, and reads only the folders given. Whoever opens the address that it prints can start and
    stop trainings, which run as commands of their own and go on when the page is stopped. Paths in recipes are relative to
    the first folder.
    """
    ANNEX.require_packages()
    from reelworks.annexes.page import serve

    if end_jobs:
        serve.end_jobs(folders or [Path()], show.line)
    else:
        serve.serve(folders or [Path()], port, opens=open, say=show.line, host=host)
