"""`reelworks compare`: compare two runs or more."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument

from reelworks.commands import show
from reelworks.commands.options import Html, Json
from reelworks.core.errors import UserError

MOST_RUNS = 8


def compare(runs: Annotated[list[Path], Argument(metavar="RUN RUN...")], html: Html = None, json: Json = False) -> None:
    """Compare runs: their results, and the recipe keys in which they differ.

    The page of --html also has their curves in one plot, and previews of the same prompt side by side: of the last step at
    which all runs made previews, or else of each one's last.

    Args:
        runs: Run folders, finished or not.
    """
    if not 2 <= len(runs) <= MOST_RUNS:
        raise UserError(
            f"this compares two to {MOST_RUNS} runs",
            code="runs-to-compare",
            field="RUN",
            value=" ".join(map(str, runs)),
            remedy="give the folders of the runs, such as: reelworks compare runs/first runs/second",
        )
    from reelworks.data.run.folder import RunFolder
    from reelworks.reports import compare as comparing

    found = comparing.compare([RunFolder(run) for run in runs])
    if html is not None:
        comparing.write(found, html)
    if json:
        show.json(found)
        return
    for first, rows in (("", found.result_rows), ("recipe key", found.recipe_rows)):
        if rows:
            show.table((first, *found.names), ((row.label, *row.values) for row in rows))
    if not found.recipe:
        show.line("The recipes are equal.")
    if html is not None:
        show.line(str(html))
