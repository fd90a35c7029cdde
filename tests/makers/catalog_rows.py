"""Rows of a catalog that no scan made."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pyarrow as pa

from reelworks.data.catalog.store.rows import CatalogRows
from reelworks.data.catalog.store.schema import SCORE, with_scores
from reelworks.data.media.probe import Probe

PLAIN: dict[str, Any] = asdict(Probe("video", pixel_aspect_ratio=1.0))  # measures of a file without peculiarities
VIDEO = {"kind": "video", "num_frames": 100, "height": 720, "width": 1280, "fps": 24.0, "duration_seconds": 100 / 24}
PICTURE = {"kind": "image", "num_frames": 1, "height": 1024, "width": 1024, "fps": 0.0, "duration_seconds": 0.0}
BAD = {"error": "truncated: no frame", "num_frames": 0, "height": 0, "width": 0, "fps": 0.0, "caption": None}


def rows(*values: dict[str, Any]) -> CatalogRows:
    """One row for each dict of what differs from a plain video."""
    full = [row(i, value) for i, value in enumerate(values)]
    scores = dict.fromkeys(name.removeprefix(SCORE) for value in values for name in value if name.startswith(SCORE))
    return CatalogRows.from_table(pa.Table.from_pylist(full, schema=with_scores(scores)))


def row(i: int, value: dict[str, Any]) -> dict[str, Any]:
    """Columns of a plain video, and what differs."""
    path = f"clip-{i:04d}"
    identity = {"ordinal": i, "uid": 1000 + 7919 * i, "path": path, "group": path, "fingerprint": path}
    where = {"dataset": "data", "root": "/data", "size_bytes": 1000, "mtime_ns": 0, "start": -1}
    stream = {"codec": "h264", "pixel_format": "yuv420p", "bit_depth": 8, "rotation": 0}
    flags = {**PLAIN, "first_frame": 0, "cut": "", "caption": f"shot number {i}", "error": None}
    return {**flags, **identity, **where, **stream, **VIDEO, **value}
