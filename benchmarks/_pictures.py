"""A folder of small pictures, a recipe that trains on them, and their frames in memory, for benchmarks of the trainer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from PIL import Image

from reelworks.core.shape import Shape
from reelworks.data.media import decode
from reelworks.data.media.decode import Frames, Request

SIZES = ((48, 64), (64, 48), (48, 48))


def write(folder: Path, number: int) -> None:
    """Write pictures of three shapes with captions."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    for i in range(number):
        height, width = SIZES[i % len(SIZES)]
        Image.fromarray(generator.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(folder / f"{i:05d}.png")
        (folder / f"{i:05d}.txt").write_text(f"picture number {i % 50}", encoding="utf-8")


def recipe(folder: Path, steps: int, *, hidden_size: int = 64, depth: int = 4, batch_size: int = 2) -> dict[str, Any]:
    """Return a recipe without validation, previews and saves before its end."""
    return {
        "version": 1,
        "output": str(folder / "run"),
        "seed": 7,
        "dataset": [{"path": str(folder / "pictures")}],
        "bucket": [{"resolution": "48px", "num_frames": 1, "batch_size": batch_size}],
        "buckets": {"upscale": True, "max_crop": 0.7, "aspect_ratios": ["4:3", "1:1", "3:4"]},
        "data": {"num_workers": 0},
        "model": {"name": "stdit3-tiny", "hidden_size": hidden_size, "depth": depth, "num_heads": 4},
        "autoencoder": {"stride": 8},
        "text_encoder": {"dim": 32, "max_length": 16},
        "precision": {"compute": "float32"},
        "train": {"max_steps": steps, "learning_rate": 1e-4, "threads": 1},
        "validation": {"split": 0.0, "every_steps": None},
        "checkpoints": {"every_steps": None},
    }


@contextmanager
def in_memory() -> Iterator[None]:
    """Decode each file once for each shape, and take its frames from memory afterwards."""
    load, known = decode.load, dict[tuple[str, Shape], Frames]()

    def remembered(request: Request) -> Frames:
        key = str(request.path), request.shape
        if key not in known:
            known[key] = load(request)
        return known[key]

    with mock.patch.object(decode, "load", remembered):
        yield
