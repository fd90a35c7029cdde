"""`reelworks inspect`: summarise a catalog, give advice and propose buckets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reelworks.cli import show, show_data
from reelworks.cli.options import Html


def inspect(
    catalog: Annotated[Path, typer.Argument(metavar="CATALOG", help="A catalog's folder.")],
    html: Html = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON value, with the first 20 files of each advice.")
    ] = False,
) -> None:
    """Summarise a catalog, give advice on its files and propose buckets.

    Prints distributions of resolution, aspect ratio, frames, frame rate, duration, caption length, pictures per
    folder and every score; advice, for instance on empty or overlong captions, few pictures, mixed frame rates
    and duplicate files; and bucket entries to copy into a recipe, each with its reason.

    Caption length is counted in words and punctuation marks; a tokenizer makes at least as many tokens.
    """
    from reelworks.catalog import companions
    from reelworks.catalog.store import Catalog
    from reelworks.report.inspect import inspect_rows, write_inspection

    inspection = inspect_rows(companions.without(Catalog.open(catalog).live()))
    if html is not None:
        write_inspection(inspection, catalog, html)
    show.json(inspection.to_json()) if json else show_data.inspection(inspection, html)
