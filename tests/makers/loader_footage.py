"""Small footage for loaders, and what a step trains."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import torch
from media_makers import numbered, write
from PIL import Image

import reelworks as rw

TABLE = rw.BucketTable.from_entries(
    [rw.BucketEntry("32px", num_frames=[1, 5], batch_size=[3, 2])],
    geometry=rw.Geometry((1, 1, 1), (1, 4, 4)),
    aspect_ratios=["1:1"],
)


def make_footage(folder: Path, pictures: int = 11, clips: int = 4) -> Path:
    """Write pictures and clips, each with a caption."""
    folder.mkdir()
    for i in range(pictures):
        Image.new("RGB", (32, 32), (20 * i, 0, 0)).save(folder / f"{i:02}.png")
        (folder / f"{i:02}.txt").write_text(f"picture {i}", encoding="utf-8")
    for i in range(clips):
        write(folder / f"clip-{i}.mp4", numbered(9))
        (folder / f"clip-{i}.txt").write_text(f"clip {i}", encoding="utf-8")
    return folder


def dataset_of(footage: Path, table: rw.BucketTable = TABLE, *, seed: int = 7) -> rw.Dataset:
    return rw.Dataset(rw.Catalog.scan(footage, to=footage.parent / "catalog", workers=1), table, seed=seed)


def trained(step: Iterable[rw.MicroBatch]) -> Counter[tuple[int, int]]:
    """Clips of a step that count, on one rank; those that pad or only fill are left out."""
    found: Counter[tuple[int, int]] = Counter()
    for micro_batch in step:
        counts = micro_batch.is_valid.numpy() & micro_batch.request.is_first_use
        found.update(
            zip(micro_batch.request.uids[counts].tolist(), micro_batch.request.copies[counts].tolist(), strict=True)
        )
    return found


class SumOfThreads:
    """A sum over ranks that are threads of one process."""

    def __init__(self, world_size: int) -> None:
        self._parts: list[torch.Tensor] = []
        self._barrier = threading.Barrier(world_size)

    def __call__(self, numbers: torch.Tensor) -> None:
        self._parts.append(numbers.clone())
        self._barrier.wait(timeout=60)
        numbers.copy_(torch.stack(self._parts).sum(dim=0))
        if self._barrier.wait(timeout=60) == 0:
            self._parts.clear()
        self._barrier.wait(timeout=60)

    def abort(self) -> None:
        """Let go of those that wait, since a rank has ended."""
        self._barrier.abort()
