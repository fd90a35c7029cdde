"""`reelworks trust`: agree to code that recipes name, once."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

from typer import Argument

from reelworks.commands import show
from reelworks.core.errors import UserError


def trust(code: Annotated[list[Path], Argument(metavar="FILE...")]) -> None:
    """Agree that recipes may run these Python files, such as metrics of your own in samples.metrics.

    Commands on a terminal ask by themselves; jobs of a cluster and the page's queue cannot. A file is trusted by its path,
    whatever is in it later. The list is ~/.local/state/reelworks/trusted-code.json.

    Args:
        code: Python files that recipes name.
    """
    from reelworks.core import trust as trusted

    for path in code:
        if not path.is_file():
            raise UserError(
                "there is no such file",
                code="no-such-file",
                field="FILE",
                value=str(path),
                remedy="name the Python file that the recipe names, relative to this folder",
            )
    trusted.add(code)
    for path in code:
        show.line(f"recipes may run {path.resolve()}")


def ask(path: Path) -> bool:
    """Ask on the terminal whether a recipe may run the code of a file; without a terminal nobody agrees."""
    if "RANK" in os.environ or not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    show.line(f"This recipe runs code of {path}", error=True)
    show.line("Run it, now and later? [y/N]", error=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
