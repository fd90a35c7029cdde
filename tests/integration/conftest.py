"""A small data set and the recipe of a training that takes a second."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import headless
import media_makers
import numpy as np
import page_client
import pytest
import tiny_recipe
from PIL import Image
from tiny_recipe import Recipe

# The lookahead of slower presets reads memory beside frames this small: a file in 200 has other bytes.
_H264 = {"preset": "ultrafast", "crf": "14"}


@pytest.fixture(scope="session")
def footage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nineteen clips and pictures of three shapes, one without a caption, one damaged."""
    folder = tmp_path_factory.mktemp("footage0", numbered=False)  # a part of what clips are known by
    generator = np.random.default_rng(0)
    sizes = [(32, 48), (48, 32), (32, 32)]
    for i in range(10):
        height, width = sizes[i % 3]
        frames = generator.integers(0, 256, (6 + i % 4, height, width, 3), dtype=np.uint8)
        media_makers.write(folder / f"clip-{i}.mp4", frames, options=_H264)
        (folder / f"clip-{i}.txt").write_text(f"clip number {i}", encoding="utf-8")
    for i in range(7):
        height, width = sizes[i % 3]
        picture = generator.integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(picture).save(folder / f"picture-{i}.png")
        (folder / f"picture-{i}.txt").write_text(f"picture number {i}", encoding="utf-8")
    media_makers.write(folder / "no-caption.mp4", np.zeros((6, 32, 32, 3), np.uint8), options=_H264)
    (folder / "damaged.mp4").write_bytes(b"not a video")
    return folder


@pytest.fixture
def tiny(tiny_in: Callable[..., Recipe], tmp_path: Path) -> Callable[..., Recipe]:
    """Make a recipe; keyword arguments are tables or values that replace the defaults' keys."""
    return partial(tiny_in, tmp_path)


@pytest.fixture(scope="session")
def tiny_in(footage: Path) -> Callable[..., Recipe]:
    """As `tiny`, with the folder that the run is to lie in before all else."""
    return partial(_tiny, footage)


def _tiny(footage: Path, folder: Path, output: str = "run", **changes: Any) -> Recipe:
    own: Recipe = {
        "train": {"max_steps": 6, "threads": 1},
        "validation": {"split": 0.15, "every_steps": 4},
        "checkpoints": {"every_steps": 2, "keep_last": 2},
    }
    recipe = tiny_recipe.changed(tiny_recipe.values(str(footage), str(folder / output)), own)
    return tiny_recipe.changed(recipe, changes)


@pytest.fixture(scope="session")
def opened() -> Iterator[Any]:
    """A headless browser."""
    with headless.browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def address(opened: Any, root: Path) -> Iterator[str]:
    """Where the page of a module's folder, its fixture `root`, is served."""
    with page_client.served(root) as address:
        yield address
