"""A fifth of the files break after the scan, in ten ways: the epoch ends, and each is named with its reason."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import media_makers as media
import numpy as np
import pytest
from PIL import Image

import reelworks as rw
from reelworks.data.loader.micro_batch import MicroBatch

CLIPS, FRAMES = 50, 5


def replace(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


def text_in(path: Path) -> None:
    path.write_text("not a video at all, but as long as one " * 200, encoding="utf-8")


def picture_in(path: Path) -> None:
    Image.new("RGB", (64, 48)).save(path, format="PNG")


def other_size(path: Path) -> None:
    media.write_video(path, num_frames=2)


WAYS: dict[str, tuple[Callable[[Path], object], str]] = {
    "gone": (Path.unlink, "No such file"),
    "empty": (lambda path: os.truncate(path, 0), "Invalid data|EOF|Error"),
    "cut off": (lambda path: os.truncate(path, path.stat().st_size // 2), "no video stream|Invalid data|Error"),
    "zeros": (lambda path: path.write_bytes(bytes(path.stat().st_size)), "Invalid data|Error"),
    "text": (text_in, "Invalid data|Error"),
    "a picture": (lambda path: replace(path, picture_in), "not a video"),
    "too short now": (lambda path: replace(path, other_size), "the file has 2 frames"),
    "a folder": (lambda path: replace(path, Path.mkdir), "irectory"),
    "a link to itself": (lambda path: replace(path, lambda p: p.symlink_to(p)), "ymbolic links|ELOOP|Error"),
    "a pipe": (lambda path: replace(path, os.mkfifo), "not a regular file, but a pipe"),
}


@pytest.fixture
def dataset(tmp_path: Path) -> rw.Dataset:
    first = media.write_video(tmp_path / "clips" / "00.mp4", num_frames=FRAMES)
    for i in range(1, CLIPS):
        (first.parent / f"{i:02}.mp4").write_bytes(first.read_bytes() + bytes(i))  # each a file of its own
    for i in range(CLIPS):
        (first.parent / f"{i:02}.txt").write_text("a number", encoding="utf-8")
    catalog = rw.Catalog.scan(first.parent, to=tmp_path / "catalog")
    entry = rw.BucketEntry("32px", num_frames=[FRAMES], batch_size=[4])
    table = rw.BucketTable.from_entries([entry], geometry=rw.Geometry((4, 8, 8), (1, 2, 2)))
    return rw.Dataset(catalog, table, seed=7)


def test_the_epoch_ends_and_each_broken_file_is_named(dataset: rw.Dataset, tmp_path: Path) -> None:
    def read(workers: int) -> list[MicroBatch]:
        loader = rw.Loader(dataset, num_workers=workers, decode_timeout=3.0, max_decode_failures=0.2)
        batches = [batch for step in loader for batch in step]
        loader.close()
        return batches

    before = read(0)
    assert sum(int(batch.is_valid.sum()) for batch in before) == CLIPS
    broken = {tmp_path / "clips" / f"{5 * i:02}.mp4": way for i, way in enumerate(WAYS)}
    for path, way in broken.items():
        WAYS[way][0](path)

    failed: dict[Path, str] = {}
    after = read(1)
    for old, new in zip(before, after, strict=True):
        assert new.request.uids.tolist() == old.request.uids.tolist()
        failed |= {new.request.requests[index].path: reason for index, reason in new.failures}
        for index, one in enumerate(new.request.requests):
            good = bool(old.is_valid[index]) and one.path not in broken
            assert bool(new.is_valid[index]) == good
            frames = old.frames[index] if one.path not in broken else np.zeros_like(old.frames[index])
            np.testing.assert_array_equal(new.frames[index], frames)
    assert set(failed) == set(broken)
    for path, way in broken.items():
        assert re.search(WAYS[way][1], failed[path]), (way, failed[path])
