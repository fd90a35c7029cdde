"""`reelworks demo-data`: sample footage, made here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo_data(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="An empty folder, or one that is not there yet.")
    ],
    seed: Annotated[int, typer.Option(help="Another seed makes other footage.")] = 0,
) -> None:
    """Make sample footage: some 120 captioned clips and pictures, good and bad ones."""
    from reelworks.demo import make

    summary = make.make(folder, seed=seed)
    print(
        f"{folder}: {len(summary.videos)} clips, {len(summary.pictures)} pictures and {len(summary.bad)} with "
        f"something wrong, {summary.total_bytes / 1e6:.1f} MB"
    )
