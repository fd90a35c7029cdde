"""Folders of pictures, of clips and of both, as people who train a first LoRA have them."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import av
import numpy as np
from PIL import Image

KINDS = ("pictures", "clips", "both")
FILLED_SIDE = 1024  # of the largest square that the pictures fill
_PICTURES = ((1024, 1024), (832, 1216), (1344, 768))
_CLIP = (130, 1280, 720, 24)  # frames, width, height, rate


def write_kinds(folder: Path) -> None:
    """Write a folder of each kind, and one of companions with the same names."""
    _write_clip(clip := folder / "clip.mp4")
    for kind, copy in itertools.product(KINDS, ("", "beside-")):
        (path := folder / f"{copy}{kind}").mkdir()
        for i in range(6 if kind != "clips" else 0):
            Image.new("RGB", _PICTURES[i % 3], (i, 90, 20)).save(path / f"p{i}.png", compress_level=1)
            (path / f"p{i}.txt").write_text(f"picture {i}", encoding="utf-8")
        for i in range(3 if kind != "pictures" else 0):
            shutil.copy(clip, path / f"c{i}.mp4")
            (path / f"c{i}.txt").write_text(f"clip {i}", encoding="utf-8")


def _write_clip(path: Path) -> None:
    frames, width, height, rate = _CLIP
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=rate, options={"preset": "ultrafast", "crf": "40"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        sound = file.add_stream("aac", rate=16_000)
        grey = np.full((height, width, 3), 90, np.uint8)
        for _ in range(frames):
            file.mux(stream.encode(av.VideoFrame.from_ndarray(grey, format="rgb24")))
        file.mux(stream.encode())
        quiet = av.AudioFrame.from_ndarray(np.zeros((1, 16_000 * frames // rate), np.float32), "fltp", "mono")
        quiet.sample_rate = 16_000
        file.mux(sound.encode(quiet))
        file.mux(sound.encode())
