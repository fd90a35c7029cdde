"""Count clips by their measures, for the bars and the map of sizes that the page draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelworks.annexes.page.clips import ClipView
from reelworks.core.arrays import F64, I32
from reelworks.core.results import Json
from reelworks.data.catalog.store.rows import CatalogRows
from reelworks.data.catalog.store.schema import as_numpy

_BARS = 24
_FEW = 16  # so many different values have a bar each
_MAP_CELLS = 28  # of the map of sizes, along each side


class _Measure(NamedTuple):
    name: str
    label: str
    unit: str
    values: Callable[[CatalogRows], NDArray[Any]]
    of_videos: bool = False
    is_whole: bool = False


def _caption_letters(rows: CatalogRows) -> NDArray[Any]:
    return as_numpy(pc.utf8_length(rows.caption).fill_null(0))


_MEASURES = (
    _Measure("frames", "Frames", "", lambda r: r.num_frames, of_videos=True, is_whole=True),
    _Measure("fps", "Frames per second", "", lambda r: r.fps, of_videos=True),
    _Measure("duration", "Duration", "s", lambda r: r.duration_seconds, of_videos=True),
    _Measure("aspect", "Aspect ratio", "", lambda r: r.width / np.maximum(r.height, 1)),
    _Measure("caption", "Caption length", "letters", _caption_letters, is_whole=True),
)


def distributions(clips: ClipView, chosen: I32) -> Json:
    """Return the bars of each measure, and the map of sizes, of some clips; unreadable files have no measures."""
    rows = clips.data.rows
    readable = np.sort(chosen[rows.height[chosen] > 0])
    bars = []
    for measure in _MEASURES:
        among = readable[rows.is_video[readable]] if measure.of_videos else readable
        values = np.asarray(measure.values(rows)[among], dtype=np.float64)
        if len(values):
            drawn = bars_of(values, whole=measure.is_whole)
            bars.append({"name": measure.name, "label": measure.label, "unit": measure.unit, **drawn})
    return {"bars": bars, "sizes": _sizes(clips, readable), "clips": len(readable)}


def bars_of(values: F64, *, whole: bool = False) -> Json:
    """Return edges and counts of bars; a few different values have a bar each, and the longest tail shares one."""
    middle = float(np.median(values))
    distinct = np.unique(np.round(values, 3)) if len(values) < 50_000 else np.unique(np.round(values[::50], 3))
    if len(distinct) <= _FEW:
        names, counts = np.unique(np.round(values, 3), return_counts=True)
        if len(names) <= _FEW:
            return {"median": middle, "values": names.tolist(), "counts": counts.tolist()}
    low, high = float(values.min()), float(np.percentile(values, 99.5))
    step = _round_step((high - low) / _BARS)
    step = max(step, 1.0) if whole else step
    first = np.floor(low / step) * step
    number = int(max(np.ceil((high - first) / step), 1))
    place = np.minimum((values - first) // step, number).astype(np.int64)  # the last bar has all that is larger
    counts = np.bincount(place, minlength=number + 1)
    edges = (first + step * np.arange(number + 1)).tolist()
    if not counts[-1]:
        counts = counts[:-1]
    return {"median": middle, "edges": edges, "counts": counts.tolist(), "max": float(values.max())}


def _round_step(step: float) -> float:
    """Return the least of 1, 2, 5, 10, … times a power of ten that is not smaller."""
    if step <= 0:
        return 1.0
    power = 10.0 ** np.floor(np.log10(step))
    return float(next(power * digit for digit in (1, 2, 5, 10) if power * digit >= step * (1 - 1e-9)))


def _sizes(clips: ClipView, rows: I32) -> Json:
    """Return the numbers of clips by width and height, in cells of equal sides, and the buckets' shapes."""
    if not len(rows):
        return {"cell": 1, "cells": [], "buckets": []}
    width, height = clips.data.rows.width[rows], clips.data.rows.height[rows]
    widest = int(max(np.percentile(width, 99.8), np.percentile(height, 99.8)))
    cell = int(max(_round_step(widest / _MAP_CELLS), 1))
    across, down = np.minimum(width // cell, _MAP_CELLS + 2), np.minimum(height // cell, _MAP_CELLS + 2)
    place, counts = np.unique(across * (_MAP_CELLS + 3) + down, return_counts=True)
    cells = [[*divmod(int(where), _MAP_CELLS + 3), int(count)] for where, count in zip(place, counts, strict=True)]
    used = np.unique(clips.bucket[rows])
    shapes = {(b.shape.width, b.shape.height) for b in (clips.data.table.buckets[i] for i in used[used >= 0].tolist())}
    return {"cell": cell, "cells": cells, "buckets": sorted(shapes)}
