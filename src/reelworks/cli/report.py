"""`reelworks report`: a run as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reelworks.cli.options import RunArgument


def report(
    run: RunArgument,
    costs: Annotated[
        Path | None,
        typer.Option(help="Also write what a clip of each bucket cost, for a recipe's cost.measured."),
    ] = None,
) -> None:
    """Draw a run as one HTML file, RUN/report.html, that needs neither network nor server."""
    from reelworks.analysis.costs import measure_costs, write_costs
    from reelworks.cli import show
    from reelworks.report import html
    from reelworks.run.folder import RunFolder

    if costs is not None:
        measured = measure_costs(RunFolder(run))
        write_costs(costs, measured)
        show.line(f"{costs}: {len(measured)} buckets")
    show.line(str(html.write(RunFolder(run))))
