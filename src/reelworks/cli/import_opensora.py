"""`reelworks import-opensora`: convert a training config of Open-Sora to a recipe."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from reelworks.cli import show
from reelworks.cli.options import Json
from reelworks.core.errors import UserError


class Meaning(StrEnum):
    """Meaning of the probabilities of a bucket_config."""

    V1_2 = "opensora-1.2"
    V2_0 = "opensora-2.0"
    DOWNGRADE = "downgrade"


def import_opensora(
    config: Annotated[Path, Argument(metavar="CONFIG", help="A training config (a Python file).")],
    output: Annotated[Path, Option("--output", "-o", metavar="RECIPE", help="The recipe to write, a new file.")],
    data_path: Annotated[str | None, Option(help="List or folder of clips in place of the config's.")] = None,
    probability: Annotated[
        Meaning | None,
        Option(help="Meaning of bucket_config's probabilities, if the config's model does not determine it."),
    ] = None,
    json: Json = False,
) -> None:
    """Convert a training config of Open-Sora 1.1, 1.2 or 2.0 to a recipe.

    Reads the config as literals and never runs it. Prints how each key was converted, and which are not supported yet.
    """
    from reelworks.compat.opensora import importer
    from reelworks.compat.opensora.rules import Fate
    from reelworks.core import files

    if output.exists():
        raise UserError(
            "the file exists already",
            code="file-exists",
            field="--output",
            value=str(output),
            remedy="remove it or choose another name",
        )
    converted = importer.convert(
        config, name=output.stem, data_path=data_path, probability=probability.value if probability else None
    )
    files.write_for("--output", output, converted.text.encode())
    if json:
        show.json(importer.ImportReport(output, converted.lines))
        return
    for fate in Fate:
        lines = [line for line in converted.lines if line.fate == fate]
        if lines:
            show.line(f"{fate} ({len(lines)})")
            for line in lines:
                show.line(f"  {line.key}: {line.remark}")
    show.line(str(output))
