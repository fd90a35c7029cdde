"""Disks of so many bytes or inodes, for those who may mount them, and pictures to be read from them."""

from __future__ import annotations

import contextlib
import functools
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image


@contextlib.contextmanager
def disk(at: Path, *, kilobytes: int = 50_000, inodes: int = 0) -> Iterator[Path]:
    """Mount a disk of its own; without inodes, it has as many as it likes."""
    at.mkdir()
    size = f"size={kilobytes}k" + (f",nr_inodes={inodes}" if inodes else "")
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(at)], check=True)
    try:
        yield at
    finally:
        subprocess.run(["umount", "-l", str(at)], check=True)


@functools.cache
def may_mount() -> bool:
    """Return whether this user may mount a disk."""
    quietly = contextlib.suppress(OSError, subprocess.CalledProcessError)
    with tempfile.TemporaryDirectory() as folder, quietly, disk(Path(folder) / "disk"):
        return True
    return False


def write_data(folder: Path) -> Path:
    """Write some small pictures."""
    (data := folder / "data").mkdir()
    for i in range(6):
        pixels = np.random.default_rng(i).integers(0, 255, (32, 32, 3), np.uint8)
        Image.fromarray(pixels).save(data / f"{i}.png")
    return data
