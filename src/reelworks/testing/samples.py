"""Twelve small sample files: pictures and clips of two shapes, each with a caption."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reelworks.data.catalog.store.store import Catalog
    from reelworks.data.loader.dataset import Dataset

_SIZES = ((64, 64), (64, 96))  # height, width
_NUM_PICTURES, _NUM_CLIPS, _NUM_FRAMES = 8, 4, 9


@functools.cache
def sample_folder() -> Path:
    """Return a temporary folder of 8 pictures and 4 clips of 9 frames, which is deleted at the program's exit."""
    import av
    import numpy as np
    from PIL import Image

    folder = Path(tempfile.mkdtemp(prefix="reelworks-samples-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    media = folder / "footage"
    media.mkdir()
    for i in range(_NUM_PICTURES):
        height, width = _SIZES[i % 2]
        Image.new("RGB", (width, height), (30 * i, 120, 200 - 20 * i)).save(media / f"picture-{i}.png")
    for i in range(_NUM_CLIPS):
        height, width = _SIZES[i % 2]
        with av.open(str(media / f"clip-{i}.mp4"), "w") as container:
            stream = container.add_stream("mpeg4", rate=24)
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            for t in range(_NUM_FRAMES):
                image = np.full((height, width, 3), 20 * (i + 1) + 5 * t, dtype=np.uint8)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
            container.mux(stream.encode(None))
    for file in list(media.iterdir()):
        file.with_suffix(".txt").write_text(f"a sample named {file.stem}", encoding="utf-8")
    return media


@functools.cache
def sample_catalog() -> Catalog:
    """Return the catalog of `sample_folder`."""
    from reelworks.data.catalog.store.store import Catalog

    return Catalog.scan(sample_folder(), to=sample_folder().parent / "sample-catalog", workers=1)


def sample_dataset(seed: int = 42) -> Dataset:
    """Return a dataset of `sample_catalog`: pictures and clips of 5 frames, in micro-batches of up to 4 and 2."""
    from reelworks.core.shape import Geometry
    from reelworks.data.buckets.table import BucketEntry, BucketTable
    from reelworks.data.loader.dataset import Dataset

    entry = BucketEntry("64px", num_frames=[1, 5], batch_size=[4, 2])
    table = BucketTable.from_entries([entry], geometry=Geometry((4, 8, 8), (1, 2, 2)))
    return Dataset(sample_catalog(), table, seed=seed)
