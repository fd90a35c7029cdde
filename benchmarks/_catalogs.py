"""Catalogs of millions of made-up clips, with the shapes of `_weblike.py`, captions and a history of re-scans."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks import _weblike
from reelworks.core import hash_rng
from reelworks.data.catalog.store.schema import SCHEMA
from reelworks.data.catalog.store.store import Catalog

PART_ROWS = 1_000_000
RETIRED_SHARE = 0.01  # of the former part's rows, by each part
_CAPTIONS = 4096
_WORDS = [
    "a",
    "the",
    "of",
    "in",
    "on",
    "with",
    "wide",
    "close",
    "slow",
    "red",
    "blue",
    "green",
    "old",
    "young",
    "dog",
    "cat",
    "street",
    "river",
    "mountain",
    "city",
    "crowd",
    "forest",
    "dancer",
    "boat",
    "train",
    "window",
    "rain",
    "snow",
    "night",
    "morning",
    "camera",
    "moves",
    "follows",
    "pans",
    "behind",
    "across",
    "toward",
]
_HEX = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)


def make(folder: Path, rows: int) -> Catalog:
    """Write a catalog of so many live rows, in parts of at most a million; each part retires a few earlier rows."""
    folder.mkdir(parents=True, exist_ok=True)
    catalog, live = Catalog.open_or_new(folder), 0
    for number, size in enumerate(_sizes(rows)):
        retired = np.arange(0, dtype=np.int64)
        if number:
            retired = np.arange(round(catalog.parts[-1].rows * RETIRED_SHARE)) * 50 + (number - 1) * PART_ROWS
            size = min(size + len(retired), rows - live + len(retired))
        source = {"name": "web", "root": "/data/web"}
        catalog = catalog.append(_table(number, size), retired, [source])
        live += size - len(retired)
    return catalog


def _sizes(rows: int) -> Iterator[int]:
    yield from (min(PART_ROWS, rows - first) for first in range(0, rows, PART_ROWS))


def _table(number: int, rows: int) -> Any:
    """Return a part's rows: clips of one source each, captions of 60 to 200 letters, two files of a hundred broken."""
    clips = _weblike.clips(rows, seed=number)
    rng = np.random.default_rng(number)
    broken = rng.random(rows) < 0.02
    index = np.arange(rows)
    names = [
        f"shard-{number:03d}-{i >> 12:04d}/{i:09d}.{'jpg' if image else 'mp4'}"
        for i, image in enumerate(clips.is_image.tolist())
    ]
    path = pa.array(names, pa.large_string())
    seconds = clips.num_frames / 24.0
    columns: dict[str, Any] = {
        "ordinal": index,
        "uid": hash_rng.hash64("scale", number, index),
        "dataset": _one("web", rows),
        "root": _one("/data/web", rows),
        "path": path,
        "kind": pa.array(np.where(clips.is_image, "image", "video")).dictionary_encode(),
        "size_bytes": rng.integers(10_000, 50_000_000, rows),
        "mtime_ns": rng.integers(1_600_000_000, 1_700_000_000, rows) * 10**9,
        "fingerprint": _fingerprints(rng, rows),
        "num_frames": np.where(broken, 0, clips.num_frames),
        "height": np.where(broken, 0, clips.height),
        "width": np.where(broken, 0, clips.width),
        "fps": np.where(clips.is_image | broken, 0.0, 24.0),
        "duration_seconds": np.where(clips.is_image | broken, 0.0, seconds),
        "codec": pa.array(np.where(clips.is_image, "mjpeg", "h264")).dictionary_encode(),
        "pixel_format": _one("yuv420p", rows),
        "bit_depth": np.where(broken, 0, 8),
        "rotation": np.zeros(rows, np.int64),
        "variable_fps": np.zeros(rows, np.bool_),
        "has_alpha": np.zeros(rows, np.bool_),
        "caption": _captions(rng, rows),
        "group": path,
        "error": pa.array(["no video stream" if bad else None for bad in broken.tolist()], pa.large_string()),
        "start": np.full(rows, -1),
        "pixel_aspect_ratio": np.ones(rows),
    }
    return pa.table([pa.array(_column(columns, f, rows), type=f.type) for f in SCHEMA], schema=SCHEMA)


def _column(columns: dict[str, Any], field: Any, rows: int) -> Any:
    """Return a column; those that are not given are zero, false or empty."""
    if field.name in columns:
        return columns[field.name]
    return _one("", rows) if pa.types.is_dictionary(field.type) else np.zeros(rows, field.type.to_pandas_dtype())


def _one(word: str, rows: int) -> Any:
    return pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), [word])


def _fingerprints(rng: np.random.Generator, rows: int) -> Any:
    """Return texts like `location.fingerprint` gives: a size and 32 random hexadecimal digits."""
    letters = np.empty((rows, 40), dtype=np.uint8)
    letters[:] = np.frombuffer(b"1a2b3c4-" + 32 * b"0", dtype=np.uint8)
    letters[:, 8:] = _HEX[rng.integers(0, 16, (rows, 32), dtype=np.uint8)]
    offsets = np.arange(rows + 1, dtype=np.int64) * 40
    return pa.LargeStringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(letters))


def _captions(rng: np.random.Generator, rows: int) -> Any:
    """Return captions of a few thousand texts with a number each; 1 in 100 is missing."""
    texts = pa.array([" ".join(rng.choice(_WORDS, int(n))) for n in rng.integers(10, 32, _CAPTIONS)], pa.large_string())
    chosen = texts.take(pa.array(rng.integers(0, _CAPTIONS, rows)))
    numbers = pa.array(rng.integers(0, 10**9, rows)).cast(pa.large_string())
    full = pa.compute.binary_join_element_wise(chosen, numbers, pa.scalar(" ", pa.large_string()))
    return pa.compute.if_else(pa.array(rng.random(rows) < 0.01), pa.scalar(None, pa.large_string()), full)
