"""`reelworks scan`: write a catalog of the clips on disk."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from reelworks.cli.options import Json


def scan(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...",
            help="Folders of clips and pictures, or lists of them: .csv, .parquet or .jsonl with a column path.",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="CATALOG", help="The catalog's folder.")],
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Number of threads, or of processes from 2000 files on; default: one for each core."),
    ] = None,
    root: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder that paths of lists are relative to; default: that of the list."),
    ] = None,
    json: Json = False,
) -> None:
    """Probe clips and pictures and write the results to a catalog.

    A bad file becomes a row with its reason and never stops the scan. Another scan opens only files that changed.
    """
    import os

    from reelworks.catalog.config import Source
    from reelworks.catalog.scan import scan_sources
    from reelworks.catalog.store import Catalog
    from reelworks.catalog.summary import summarise
    from reelworks.cli import show

    sources = [Source.from_path(path, root=root) for path in paths]
    with show.scan_progress(quiet=json) as on_progress:
        result = scan_sources(sources, output, workers=workers or os.cpu_count() or 1, on_progress=on_progress)
    summary = summarise(Catalog.open(output).live())
    if json:
        show.json({"scan": show.scan_json(result), "summary": asdict(summary)})
    else:
        show.scan_result(result, summary)
