"""Sizes of buckets from a pixel budget, an aspect ratio and the model's multiple."""

from __future__ import annotations

import itertools
import math
import re

from reelworks.core.errors import UserError

_NUMBER = "([1-9][0-9]*)"
_WIDE = 16 / 9
_MOST_SIDE_PX = 16_384  # side of the largest square; 8K footage has an eighth of its pixels


def pixel_budget(resolution: str) -> tuple[int, tuple[int, int] | None]:
    """Parse "480p", "512px" or "480x854": return the total pixels, and `(height, width)` if it is a single size."""
    size = None
    if match := re.fullmatch(_NUMBER + "p", resolution):
        pixels = int(match[1]) ** 2 * 16 // 9
    elif match := re.fullmatch(_NUMBER + "px", resolution):
        pixels = int(match[1]) ** 2
    elif match := re.fullmatch(f"{_NUMBER}x{_NUMBER}", resolution):
        size = int(match[1]), int(match[2])
        pixels = math.prod(size)
    else:
        raise UserError(
            "not a resolution",
            code="unknown-resolution",
            field="bucket.resolution",
            value=resolution,
            remedy='write "480p" (480 lines at 16:9), "512px" (512 × 512 pixels in total) or "480x854" (one size)',
        )
    if pixels > _MOST_SIDE_PX**2:
        raise UserError(
            f"more pixels than {_MOST_SIDE_PX} × {_MOST_SIDE_PX}",
            code="resolution-too-large",
            field="bucket.resolution",
            value=resolution,
            remedy='"480p" means 480 lines at 16:9, "512px" means 512 × 512 pixels in total',
        )
    return pixels, size


def size_at(resolution: str, ratio: float, multiple: tuple[int, int]) -> tuple[int, int]:
    """Return the height and width of a resolution at an aspect ratio (width / height).

    A resolution named by its lines does not exceed its format at 16:9 or 9:16: footage of 1920 × 1080 must fill
    "1080p", although 1080 is not a multiple of 16.
    """
    pixels, size = pixel_budget(resolution)
    return size if size is not None else nearest_size(pixels, ratio, multiple, largest_sides(resolution, ratio))


def largest_sides(resolution: str, ratio: float, *, squares: bool = False) -> tuple[float, float]:
    """Return the height and width that sizes at an aspect ratio do not exceed, infinite where there is no limit.

    A resolution named by its lines has a format at 16:9 and at 9:16. With `squares`, one named by the side of a
    square has one too.
    """
    if lines := re.fullmatch(_NUMBER + "p", resolution):
        if math.isclose(max(ratio, 1 / ratio), _WIDE, rel_tol=0.01):
            sides = int(lines[1]), int(lines[1]) * _WIDE
            return sides if ratio > 1 else sides[::-1]
    elif squares and (side := re.fullmatch(_NUMBER + "px", resolution)) and math.isclose(ratio, 1, rel_tol=0.01):
        return int(side[1]), int(side[1])
    return math.inf, math.inf


def nearest_size(
    pixels: int, ratio: float, multiple: tuple[int, int], most: tuple[float, float] = (math.inf, math.inf)
) -> tuple[int, int]:
    """Return the height and width nearest to `pixels` in area and to `ratio` (width / height) in shape.

    Both are multiples of `multiple`, and do not exceed `most` unless a single multiple does. The distance is the
    sum of the absolute log ratios of area and shape.
    """
    height = math.sqrt(pixels / ratio)
    candidates = itertools.product(_around(height, multiple[0], most[0]), _around(height * ratio, multiple[1], most[1]))
    return min(
        candidates,
        key=lambda size: (abs(math.log(size[0] * size[1] / pixels)) + abs(math.log(size[1] / size[0] / ratio)), size),
    )


def _around(value: float, multiple: int, most: float) -> list[int]:
    low = max(int(value // multiple), 1) * multiple
    return [low, low + multiple] if low + multiple <= most else [low]
