"""Pictures and clips with content of their own, as the bytes of their files."""

from __future__ import annotations

import io
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from reelworks.inference.generate import writers

PICTURE, CLIP = ".png", ".mp4"
SIZES = [(32, 48), (48, 32), (32, 32), (16, 24), (16, 16)]
_FRAMES = (2, 6)


@cache
def make(suffix: str, number: int) -> bytes:
    """Return the file of a kind and a number: other numbers give other content, and several sizes."""
    generator = np.random.default_rng([number, len(suffix), ord(suffix[1])])
    height, width = SIZES[min(int(generator.integers(0, 9)) // 2, len(SIZES) - 1)]
    if suffix == PICTURE:
        buffer = io.BytesIO()
        pixels = generator.integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(buffer, format="PNG", compress_level=1)
        return buffer.getvalue()
    frames = int(generator.integers(_FRAMES[0], _FRAMES[1] + 1))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, f"clip{suffix}")
        pixels = generator.integers(0, 256, (frames, height, width, 3), dtype=np.uint8)
        writers.write_video(file, pixels, 24.0)
        return file.read_bytes()
