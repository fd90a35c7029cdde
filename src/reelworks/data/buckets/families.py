"""Sizes of buckets that share a token count, so that few graphs are compiled.

A compiled block sees only (batch size, tokens, width): sizes of equal token count run the same graph, and cost the
same time. The sizes nearest to an area and to aspect ratios have several counts close to each other. Here, one count
is chosen for all aspect ratios of a resolution; a ratio that would lose too much of its picture at each size of that
count gets another one, so that counts are few, and no clip pays for them with more than the stated crop.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from reelworks.data.buckets import sizes

# Largest difference of a family's area from that of the resolution, as a share of it.
AREA_TOLERANCE = 0.12
ROUNDING = 1e-9  # of a share of a frame: 25:16 loses exactly a tenth for 16:9


@dataclass(frozen=True, order=True)
class _Fit:
    """A size of a certain token count for an aspect ratio: the log error of its ratio, and its sides in tokens."""

    error: float
    rows: int
    columns: int


_Fits = dict[int, dict[int, _Fit]]  # token count -> index of the ratio -> the size of this count nearest to the ratio


@functools.lru_cache(maxsize=256)
def sizes_of(
    resolution: str, ratios: tuple[float, ...], multiple: tuple[int, int], max_crop: float
) -> tuple[tuple[int, int], ...]:
    """Return the height and width of a resolution at each aspect ratio (width / height), with few token counts.

    All sizes are multiples of `multiple`. Those of a common count have an area within `AREA_TOLERANCE` of the
    resolution's, and a frame of the aspect ratio loses at most the share `max_crop` to the size. A ratio for which
    there is no such size keeps that of `sizes.size_at`.
    """
    pixels, _ = sizes.pixel_budget(resolution)
    budget = pixels / math.prod(multiple)
    fits: _Fits = {}
    for index, ratio in enumerate(ratios):
        # Footage of the resolution's own format must fill its size.
        height, width = sizes.largest_sides(resolution, ratio, squares=True)
        in_tokens, most = ratio * multiple[0] / multiple[1], (height / multiple[0], width / multiple[1])
        _collect(fits, index, in_tokens, budget, most, -math.log1p(-max_crop) + ROUNDING)
    chosen = _counts(fits, budget)
    result = []
    for index, ratio in enumerate(ratios):
        able = [(_cost(fits[n][index], n, budget), fits[n][index]) for n in chosen if index in fits[n]]
        if able:
            best = min(able)[1]
            result.append((best.rows * multiple[0], best.columns * multiple[1]))
        else:
            result.append(sizes.size_at(resolution, ratio, multiple))
    return tuple(result)


def lost(size: tuple[int, int], ratio: float) -> float:
    """Return the share of a frame of an aspect ratio that the crop to a height and width removes."""
    return 1 - math.exp(-abs(math.log(size[1] / size[0] / ratio)))


def _collect(
    fits: _Fits, index: int, ratio: float, budget: float, limits: tuple[float, float], max_error: float
) -> None:
    """Add the sizes for a ratio of columns to rows that are allowed, the nearest one of each count.

    `limits` are the most rows and columns.
    """
    fewest, most = budget * (1 - AREA_TOLERANCE), budget * (1 + AREA_TOLERANCE)
    spread = math.exp(max_error)
    first, last = math.sqrt(fewest / ratio / spread), min(math.sqrt(most / ratio * spread), limits[0])
    for rows in range(max(math.ceil(first), 1), math.floor(last) + 1):
        narrowest, widest = (
            max(fewest / rows, rows * ratio / spread),
            min(most / rows, rows * ratio * spread, limits[1]),
        )
        for columns in range(max(math.ceil(narrowest), 1), math.floor(widest) + 1):
            fit = _Fit(round(abs(math.log(columns / rows / ratio)), 9), rows, columns)
            of_count = fits.setdefault(rows * columns, {})
            of_count[index] = min(fit, of_count.get(index, fit))


def _counts(fits: _Fits, budget: float) -> list[int]:
    """Choose counts one by one: each serves the most ratios that are left, and of those counts at the least cost."""
    left = {index for of_count in fits.values() for index in of_count}
    chosen = []
    while left:
        ranks = []
        for count, of_count in fits.items():
            served = [_cost(fit, count, budget) for index, fit in of_count.items() if index in left]
            ranks.append((-len(served), round(sum(served), 9), count))
        best = min(ranks)[2]
        chosen.append(best)
        left -= fits[best].keys()
    return chosen


def _cost(fit: _Fit, count: int, budget: float) -> float:
    """Return the distance of `sizes.nearest_size`: the sum of the absolute log errors of shape and area."""
    return fit.error + abs(math.log(count / budget))
