"""Configs of other trainers in tests/golden/imports, converted, and what their trainers do with tables of clips."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reelworks.annexes.imports import files as config_files
from reelworks.annexes.imports import importer
from reelworks.annexes.imports.clip import Clip
from reelworks.annexes.imports.files import ConfigFile
from reelworks.annexes.imports.former import FormerEpoch
from reelworks.annexes.imports.importer import TRAINERS, Imported
from reelworks.annexes.imports.request import ImportRequest
from reelworks.annexes.imports.rules import Fate
from reelworks.training.recipe import recipe_file
from reelworks.training.recipe.recipe import Recipe

GOLDEN = Path(__file__).parents[1] / "golden" / "imports"


def converted(tmp_path: Path, *files: Path, **request: Any) -> tuple[Imported, Recipe]:
    """The conversion, and the recipe as it loads from its file."""
    written = tmp_path / "imported.toml"
    made = importer.convert(ImportRequest(files=files, output=written, force=True, clips=False, **request))
    return made, recipe_file.load(written)


def fates(made: Imported) -> dict[str, Fate]:
    assert len({key.key for key in made.keys}) == len(made.keys)
    return {key.key: key.fate for key in made.keys}


def remark(made: Imported, key: str) -> str:
    return next(each.remark for each in made.keys if each.key == key)


def settings_of(values: Any, prefix: str = "") -> set[str]:
    return set(config_files.flatten(values, prefix))


def golden_clips(name: str) -> tuple[list[Clip], dict[str, Any]]:
    """A table of clips, and the numbers that the trainer's own code gave for it."""
    table = json.loads((GOLDEN / f"{name}-clips.json").read_text())
    return [clip(*row) for row in table["clips"]], table


def clip(dataset: int, path: str, width: int, height: int, frames: int, is_image: bool) -> Clip:
    return Clip(dataset, path, width, height, frames, 0.0 if is_image else 24.0, is_image, "a caption")


def epoch_of(trainer: str, clips: Sequence[Clip], *files: Path) -> FormerEpoch:
    own = TRAINERS[trainer]
    found = own.former_epoch(own.read([ConfigFile(path) for path in files]), clips)
    assert found is not None
    return found
