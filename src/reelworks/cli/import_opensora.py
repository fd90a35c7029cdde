"""`reelworks import-opensora`: a recipe from a config of Open-Sora."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reelworks.cli.options import Json

if TYPE_CHECKING:
    from reelworks.buckets.opensora import parse


class Meaning(StrEnum):
    """Meaning of the probabilities of a bucket_config."""

    V1_2 = "opensora-1.2"
    V2_0 = "opensora-2.0"
    DOWNGRADE = "downgrade"


def import_opensora(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A training config, a Python file.")],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="RECIPE", help="The recipe to write, a file that is not there yet."
        ),
    ],
    data_path: Annotated[
        str | None, typer.Option(help="The list or folder of clips, if not the config's.")
    ] = None,
    probability: Annotated[
        Meaning | None,
        typer.Option(help="What bucket_config's probabilities mean, if the model does not tell."),
    ] = None,
    json: Json = False,
) -> None:
    """Make a recipe of a training config of Open-Sora 1.1, 1.2 or 2.0.

    The config is read as literals and never run. Prints what became of each key, and what is not there yet.
    """
    from reelworks.cli import show
    from reelworks.compat.opensora import importer
    from reelworks.compat.opensora.rules import Fate
    from reelworks.core import files
    from reelworks.core.errors import UserError

    if output.exists():
        raise UserError(
            "there is such a file",
            code="file-exists",
            field="--output",
            value=str(output),
            remedy="remove it or name another",
        )
    meaning: parse.Meaning | None = None if probability is None else probability.value
    made = importer.convert(config, name=output.stem, data_path=data_path, probability=meaning)
    output.parent.mkdir(parents=True, exist_ok=True)
    files.write_bytes(output, made.text.encode())
    if json:
        keys = [{"key": n.key, "value": n.value, "fate": n.fate, "remark": n.remark} for n in made.lines]
        show.json({"recipe": str(output), "keys": keys})
        return
    for fate in Fate:
        told = [line for line in made.lines if line.fate == fate]
        if told:
            show.line(f"{fate} ({len(told)})")
            for line in told:
                show.line(f"  {line.key}: {line.remark}")
    show.line(f"{output}")
