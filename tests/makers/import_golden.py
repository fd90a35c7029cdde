"""Configs in the style of other trainers in tests/golden/imports, and the uses of clips by the trainers' own code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from reelworks.annexes.imports import importer
from reelworks.annexes.imports.clip import Clip
from reelworks.annexes.imports.former import FormerEpoch
from reelworks.annexes.imports.importer import Imported
from reelworks.annexes.imports.request import ImportRequest
from reelworks.training.recipe import recipe_file
from reelworks.training.recipe.recipe import Recipe

FOLDER = Path(__file__).parents[1] / "golden" / "imports"


class Golden(NamedTuple):
    """Clips with the uses that the trainer's own code gives them, and its steps of an epoch."""

    clips: list[Clip]
    times: list[float]
    steps: int


def converted(folder: Path, *files: Path, **options: Any) -> tuple[Imported, Recipe]:
    """The conversion of some files, and the recipe as it loads from a file."""
    written = folder / "imported.toml"
    request = ImportRequest(files=files, output=written, force=True, clips=False, **options)
    return importer.convert(request), recipe_file.load(written)


def golden(name: str) -> Golden:
    """Read the clips of a golden config."""
    found = json.loads((FOLDER / f"{name}-clips.json").read_text())
    rows = found["clips"]
    clips = [Clip(d, path, w, h, n, fps, n == 1, caption) for d, path, w, h, n, fps, caption, _ in rows]
    return Golden(clips, [row[-1] for row in rows], found["steps"])


def former_epoch(trainer: str, clips: Sequence[Clip], *files: Path) -> FormerEpoch:
    """The trainer's epoch of some clips."""
    from reelworks.annexes.imports.files import ConfigFile

    former = importer.TRAINERS[trainer]
    found = former.former_epoch(former.read([ConfigFile(file) for file in files]), clips)
    assert found is not None
    return found
