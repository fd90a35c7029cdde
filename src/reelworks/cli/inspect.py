"""`reelworks inspect`: what a catalog holds, what to mend, and buckets for it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reelworks.cli.options import Json


def inspect(
    catalog: Annotated[Path, typer.Argument(metavar="CATALOG", help="A catalog's folder.")],
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Also draw it as one HTML file.")] = None,
    json: Json = False,
) -> None:
    """Say what a catalog holds, what to mend, and which buckets suit it."""
    from reelworks.catalog import companions
    from reelworks.catalog.store import Catalog
    from reelworks.cli import show, show_data
    from reelworks.report import inspect as inspecting

    rows = companions.without(Catalog.open(catalog).live())
    found = inspecting.inspect(rows)
    if html is not None:
        inspecting.write(found, catalog, html)
    if json:
        show.json(found.to_json())
    else:
        show_data.inspection(found, html)
