"""A small folder of real files, and recipes over it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image

from reelworks.training.recipe import dataset, recipe_file
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.recipe.recipe import Recipe


def picture(path: Path, size: tuple[int, int] = (48, 64), grey: int = 0, caption: str | None = "a cat") -> Path:
    """Write a picture of (height, width) with its caption, and the folder that it lies in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (size[1], size[0]), grey).save(path)
    return _captioned(path, caption)


def clip(path: Path, num_frames: int, size: tuple[int, int] = (48, 64), caption: str | None = "a dog") -> Path:
    """Write a video of (height, width) with its caption, and the folder that it lies in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=24)
        stream.height, stream.width, stream.pix_fmt = *size, "yuv420p"
        for i in range(num_frames):
            pixels = np.full((*size, 3), 5 * i % 256, dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode(None))
    return _captioned(path, caption)


def _captioned(path: Path, caption: str | None) -> Path:
    if caption is not None:
        path.with_suffix(".txt").write_text(caption, encoding="utf-8")
    return path


def recipe(folder: Path, **changes: Any) -> Recipe:
    """A recipe over `folder/data` with its run in `folder/run`; changes are whole tables."""
    values: dict[str, Any] = {
        "version": 1,
        "output": str(folder / "run"),
        "dataset": [{"path": str(folder / "data")}],
        "bucket": [{"resolution": "48px", "num_frames": [1, 9], "batch_size": [3, 2]}],
        "buckets": {"aspect_ratios": ["4:3", "1:1"]},
        "model": {"name": "stdit3-tiny"},
        "train": {"max_epochs": 1},
        "validation": {"split": 0.0},
    }
    return recipe_file.parse(values | changes)


def opened(made: Recipe) -> RecipeData:
    """Scan and open."""
    dataset.scan_recipe(made)
    return RecipeData.open(made)
