"""Summarise a catalog as a pure function of its rows."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelworks.core.arrays import F64
from reelworks.data.catalog.store.rows import CatalogRows

Histogram = list[tuple[str, int]]

_SHORT_SIDES = (144, 240, 360, 480, 720, 1080, 1440, 2160)  # lower bounds of the classes
_SIDE_LABELS = (f"under {_SHORT_SIDES[0]}p", *(f"{side}p" for side in _SHORT_SIDES))
_FRAME_EDGES = (1, 2, 17, 33, 65, 129, 257, 513)
_FRAME_LABELS = ("1", *(f"{a}–{b - 1}" for a, b in pairwise(_FRAME_EDGES[1:])), f"over {_FRAME_EDGES[-1] - 1}")
_FPS_EDGES = (0.0, 12.0, 20.0, 24.5, 25.5, 30.5, 50.5, 60.5)
_FPS_LABELS = ("under 12", "12–20", "20–24", "25", "26–30", "31–50", "51–60", "over 60")
_ASPECTS = ((9, 21), (9, 16), (2, 3), (3, 4), (1, 1), (4, 3), (3, 2), (16, 9), (21, 9))


@dataclass(frozen=True)
class Summary:
    """Summary of a catalog. Histograms list (label, count) of the classes that are not empty.

    All but `clips`, `bad` and `bad_reasons` are about readable clips only; `fps` and `duration_seconds` about videos.
    """

    clips: int  # number of rows, bad ones included
    by_kind: Histogram
    with_sound: int  # number of videos with sound
    bad: int  # number of files that cannot be trained on
    bad_reasons: Histogram  # their reasons without details, most frequent first
    captions_missing: int  # number of clips without a caption file
    captions_empty: int  # number of clips with an empty one
    size_bytes: int
    duration_seconds: float
    resolution: Histogram  # short sides in pixels
    num_frames: Histogram
    fps: Histogram
    aspect_ratio: Histogram  # nearest common width-to-height ratios
    scores: dict[str, Histogram]  # by name, with the number of clips that lack the score


def summarise(rows: CatalogRows) -> Summary:
    """Summarise rows, usually `Catalog.live()`, without sounds that are sources."""
    sounds = rows.is_sound & rows.readable
    rows = rows.take(~sounds) if sounds.any() else rows
    good = rows.take(rows.readable)
    aspects = np.log([width / height for width, height in _ASPECTS])
    middles = (aspects[1:] + aspects[:-1]) / 2  # nearest in the logarithm: 2:1 is as far from 1:1 as 1:2
    aspect_labels = [f"{width}:{height}" for width, height in _ASPECTS]
    return Summary(
        clips=len(rows),
        by_kind=_present([("video", int(good.is_video.sum())), ("image", int(good.is_image.sum()))]),
        with_sound=int(good.has_sound.sum()),
        bad=len(rows) - len(good),
        bad_reasons=Counter(reason.split(":")[0] for reason in rows.error.drop_null().to_pylist()).most_common(),
        captions_missing=good.caption.null_count,
        captions_empty=pc.sum(pc.equal(good.caption, "")).as_py() or 0,
        size_bytes=_size_bytes(good),
        duration_seconds=float(good.duration_seconds.sum()),
        resolution=classes(np.minimum(good.height, good.width), (0, *_SHORT_SIDES), _SIDE_LABELS),
        num_frames=classes(good.num_frames, _FRAME_EDGES, _FRAME_LABELS),
        fps=classes(good.fps[good.is_video], _FPS_EDGES, _FPS_LABELS),
        aspect_ratio=classes(np.log(good.width / good.height), (-np.inf, *middles), aspect_labels),
        scores={n: histogram(s) for n, s in good.scores.items() if not np.isnan(s).all()},
    )


def _size_bytes(rows: CatalogRows) -> int:
    """Return the size of all files; the ranges of one file have its size once."""
    size = int(rows.size_bytes[~rows.is_range].sum())
    ranged = np.flatnonzero(rows.is_range)
    files = rows.dataset.take(pa.array(ranged)), rows.path.take(pa.array(ranged))
    size_of = dict(
        zip(zip(*(texts.to_pylist() for texts in files), strict=True), rows.size_bytes[ranged].tolist(), strict=True)
    )
    return int(size + sum(size_of.values()))


def histogram(score: F64) -> Histogram:
    """Return a histogram of about ten classes at most, 1, 2 or 5 times a power of ten wide; NaN counts as "none"."""
    present = score[~np.isnan(score)]
    edges = _edges(float(present.min()), float(present.max()))
    labels = [f"{a:.6g}–{b:.6g}" for a, b in pairwise(edges)] or [f"{edges[0]:.6g}"]
    index = np.clip(np.searchsorted(edges, present, side="right") - 1, 0, len(labels) - 1)
    counts = np.bincount(index, minlength=len(labels)).tolist()
    return _present([("none", len(score) - len(present)), *zip(labels, counts, strict=True)])


def _edges(low: float, high: float) -> list[float]:
    if low == high:
        return [low]
    if not 1e-4 * max(-low, high) < high - low < 1e100:  # six digits cannot label ten classes distinctly
        return [low, high]
    power = 10.0 ** math.floor(math.log10((high - low) / 10))
    width = next(power * n for n in (1, 2, 5, 10) if power * n * 10 >= high - low)
    # Rounded, since 3 × 0.2 is above 0.6; one class more than the quotients say, since 5.8 / 0.2 is below 29.
    return [float(f"{width * i:.6g}") for i in range(math.floor(low / width), math.floor(high / width) + 3)]


def classes(values: NDArray[Any], lower_edges: Any, labels: Any) -> Histogram:
    """Count values by class, from its lower edge to below that of the next class."""
    counts = np.bincount(np.searchsorted(lower_edges, values, side="right") - 1, minlength=len(labels))
    return _present([(label, int(count)) for label, count in zip(labels, counts, strict=True)])


def _present(histogram: Histogram) -> Histogram:
    return [(label, count) for label, count in histogram if count]
