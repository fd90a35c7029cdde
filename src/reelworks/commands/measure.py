"""`reelworks measure`: measure the clips of a catalog, and make columns of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from reelworks.commands import show
from reelworks.commands.options import EngineOption, Json

if TYPE_CHECKING:
    from reelworks.annexes.quality.run import MeasureResult

_FAILED_SHOWN = 20


def measure(
    catalog: Annotated[Path, Argument(metavar="CATALOG", help="A catalog's folder.")],
    only: Annotated[
        list[str] | None,
        Option(
            metavar="NAME",
            help="A measure, one with a network, as in agreement=models/clip, or a class of yours, as in faces.py:Faces; "
            "several: repeat it. Default: all without networks.",
        ),
    ] = None,
    workers: Annotated[
        int | None, Option(min=1, help="Number of processes that decode; default: one for each core.")
    ] = None,
    timeout: Annotated[
        float, Option(min=1, help="Seconds for one clip, after which it is left without values.")
    ] = 600.0,
    engine: EngineOption = "local",
    json: Json = False,
) -> None:
    """Measure clips: sharpness, exposure, noise, blockiness, colourfulness, borders, motion, cuts, duplicates and sound.

    The values become columns of the catalog, which filters and captions of recipes can use, and scan and inspect show. Only
    what is missing is measured, and a clip never twice: values are kept by content. May be killed at any time; the same command
    goes on. docs/how-to/know-your-data.md lists the columns.
    """
    from reelworks.annexes.quality.run import measure_catalog
    from reelworks.core import cores

    with show.stdout_for_json(json), show.clip_progress(quiet=json) as on_progress:
        result = measure_catalog(
            catalog,
            only or (),
            workers=workers or cores.count(),
            on_progress=on_progress,
            engine=engine,
            timeout_seconds=timeout,
        )
    show.json(result) if json else _print(result)


def _print(result: MeasureResult) -> None:
    show.line(f"{result.clips} clips: {result.measured} measured now, {result.changed} rows changed")
    for note in result.notes:
        show.line(note)
    for clip, reason in result.failed[:_FAILED_SHOWN]:
        show.line(f"  not measured: {clip}: {reason}")
    if len(result.failed) > _FAILED_SHOWN:
        show.line(f"  and {len(result.failed) - _FAILED_SHOWN} more; --json lists them")
    table = show.new_table("column", "clips", "10 % below", "median", "10 % above", "unit")
    for column in result.columns:
        values = ("–" if value is None else f"{value:.4g}" for value in (column.low, column.median, column.high))
        table.add_row(column.name, str(column.present), *values, column.unit)
    show.print_table(table)
