"""`reelworks ui`: a local page with data, plans and runs."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from reelworks.commands import show
from reelworks.core.errors import UserError


def ui(
    folders: Annotated[
        list[Path] | None,
        Argument(metavar="[FOLDER]...", help="Folders with runs, recipes and footage; default: the current one."),
    ] = None,
    port: Annotated[
        int | None, Option(min=1, max=65535, help="Port of 127.0.0.1; default: the first free one from 8384 on.")
    ] = None,
    open: Annotated[bool, Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Serve a local page: footage and what becomes of each clip, plans to try, and runs as they train.

    Listens on this machine alone, and reads only the folders given. Whoever opens the address that it prints can start and
    stop trainings, which run as commands of their own and go on when the page is stopped. Paths in recipes are relative to
    the first folder.
    """
    for module in ("cachetools", "fastapi", "uvicorn"):
        if find_spec(module) is None:
            raise UserError(
                "the page needs packages that are not installed",
                code="extra-missing",
                field="ui",
                value=module,
                remedy='pip install "reelworks[ui]"',
            )
    from reelworks.annexes.page import serve

    serve.serve(folders or [Path()], port, opens=open, say=show.line)
