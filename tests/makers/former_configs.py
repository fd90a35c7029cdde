"""Configs of other trainers in tests/golden/imports, converted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reelworks.annexes.imports import importer
from reelworks.annexes.imports.importer import Imported
from reelworks.annexes.imports.request import ImportRequest
from reelworks.annexes.imports.rules import Fate
from reelworks.training.recipe import recipe_file
from reelworks.training.recipe.recipe import Recipe

GOLDEN = Path(__file__).parents[1] / "golden" / "imports"


def converted(tmp_path: Path, *files: Path, **request: Any) -> tuple[Imported, Recipe]:
    """The conversion, and the recipe as it loads from its file."""
    written = tmp_path / "imported.toml"
    made = importer.convert(ImportRequest(files=files, output=written, force=True, **{"clips": False, **request}))
    return made, recipe_file.load(written)


def fates(made: Imported) -> dict[str, Fate]:
    assert len({key.key for key in made.keys}) == len(made.keys)
    assert all(key.remark for key in made.keys)
    return {key.key: key.fate for key in made.keys}


def remark(made: Imported, key: str) -> str:
    return next(each.remark for each in made.keys if each.key == key)
