"""`reelworks inspect`: what a catalog holds, what to mend, and buckets for it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def inspect(
    catalog: Annotated[Path, typer.Argument(metavar="CATALOG", help="A catalog's folder.")],
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Also draw it as one HTML file that needs neither network nor server."
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON value, with the first 20 files of each advice.")
    ] = False,
) -> None:
    """Say what a catalog holds, what to mend, and which buckets suit it.

    Prints distributions of resolution, aspect ratio, frames, frame rate, duration, caption length, pictures per
    folder and every score; advice, such as on captions that are empty or too long, few pictures, mixed frame rates
    and files with the same content; and bucket entries to copy into a recipe, each with its reason.

    Caption length is counted in words and punctuation marks, of which a tokenizer makes at least as many tokens.
    """
    from reelworks.catalog import companions
    from reelworks.catalog.store import Catalog
    from reelworks.cli import show, show_data
    from reelworks.report.inspect import inspect_rows, write_inspection

    rows = companions.without(Catalog.open(catalog).live())
    found = inspect_rows(rows)
    if html is not None:
        write_inspection(found, catalog, html)
    if json:
        show.json(found.to_json())
    else:
        show_data.inspection(found, html)
