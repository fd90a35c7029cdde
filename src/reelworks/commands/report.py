"""`reelworks report`: write the report of a run as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from reelworks.commands import show
from reelworks.commands.options import Json, RunArgument
from reelworks.core import units


def report(
    run: RunArgument,
    costs: Annotated[Path | None, Option()] = None,
    output: Annotated[Path | None, Option("--output", "-o", metavar="FILE")] = None,
    json: Json = False,
) -> None:
    """Write the report of a run as one self-contained HTML file.

    Args:
        costs: Also write the measured times of micro-batches, for a recipe's cost.measured.
        output: The file to write, such as beside a run that may only be read; default: report.html in the run folder.
    """
    from reelworks.data.run.folder import RunFolder
    from reelworks.reports import html
    from reelworks.training.plan.epoch_stats import measure_costs, write_costs

    measured = None
    if costs is not None:
        measured = measure_costs(RunFolder(run))
        write_costs(costs, RunFolder(run), measured)
    written = html.WrittenReport(html.write(RunFolder(run), output), measured)
    if json:
        show.json(written)
        return
    if measured is not None:
        show.line(f"{costs}: {units.plural(len(measured), 'bucket')}")
    show.line(str(written.report))
