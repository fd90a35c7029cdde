"""Configs in the style of other trainers in tests/golden/imports, converted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reelworks.annexes.imports import importer
from reelworks.annexes.imports.importer import Imported
from reelworks.annexes.imports.request import ImportRequest
from reelworks.training.recipe import recipe_file
from reelworks.training.recipe.recipe import Recipe

FOLDER = Path(__file__).parents[1] / "golden" / "imports"


def converted(folder: Path, *files: Path, **options: Any) -> tuple[Imported, Recipe]:
    """The conversion of some files, and the recipe as it loads from a file."""
    written = folder / "imported.toml"
    request = ImportRequest(files=files, output=written, force=True, clips=False, **options)
    return importer.convert(request), recipe_file.load(written)
