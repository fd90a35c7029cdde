"""`reelworks report`: write the report of a run as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from reelworks.cli import show
from reelworks.cli.options import RunArgument


def report(
    run: RunArgument,
    costs: Annotated[
        Path | None, Option(help="Also write the measured cost of a clip of each bucket, for a recipe's cost.measured.")
    ] = None,
) -> None:
    """Write the report of a run as one self-contained HTML file, RUN/report.html."""
    from reelworks.analysis.epoch_stats import measure_costs, write_costs
    from reelworks.report import html
    from reelworks.run.folder import RunFolder

    if costs is not None:
        measured = measure_costs(RunFolder(run))
        write_costs(costs, measured)
        show.line(f"{costs}: {len(measured)} buckets")
    show.line(str(html.write(RunFolder(run))))
