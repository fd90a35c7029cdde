"""Sizes of buckets, computed from a pixel budget, an aspect ratio and the model's multiple."""

from __future__ import annotations

import itertools
import math
import re

from reelworks.core.errors import UserError

_NUMBER = "([1-9][0-9]*)"
_WIDE = 16 / 9
_MOST_SIDE_PX = 16_384  # of a square; footage of 8K has an eighth of its pixels


def pixel_budget(resolution: str) -> int | tuple[int, int]:
    """Read a resolution: pixels in all for "480p" and "512px", `(height, width)` for "480x854".

    Raises:
        UserError: It has none of the three forms, or more pixels than any footage.
    """
    budget = _read(resolution)
    pixels = budget if isinstance(budget, int) else budget[0] * budget[1]
    if pixels > _MOST_SIDE_PX**2:
        raise UserError(
            f"more pixels than {_MOST_SIDE_PX} × {_MOST_SIDE_PX}",
            code="resolution-too-large",
            field="bucket.resolution",
            value=resolution,
            remedy='"480p" is 480 lines at 16:9, "512px" is 512 × 512 pixels in all',
        )
    return budget


def _read(resolution: str) -> int | tuple[int, int]:
    if match := re.fullmatch(_NUMBER + "p", resolution):
        return int(match[1]) ** 2 * 16 // 9
    if match := re.fullmatch(_NUMBER + "px", resolution):
        return int(match[1]) ** 2
    if match := re.fullmatch(f"{_NUMBER}x{_NUMBER}", resolution):
        return int(match[1]), int(match[2])
    raise UserError(
        "not a resolution",
        code="unknown-resolution",
        field="bucket.resolution",
        value=resolution,
        remedy='write "480p" (480 lines at 16:9), "512px" (512 × 512 pixels in all) or "480x854" (one size)',
    )


def size_at(resolution: str, ratio: float, multiple: tuple[int, int]) -> tuple[int, int]:
    """Height and width of a resolution at an aspect ratio (width / height).

    A resolution named by its lines is no larger than its format, upright or not: footage of 1920 × 1080 is to
    fill "1080p", though 1080 is no multiple of 16.
    """
    budget = pixel_budget(resolution)
    if isinstance(budget, tuple):
        return budget
    lines = re.fullmatch(_NUMBER + "p", resolution)
    most = (math.inf, math.inf)
    if lines is not None and math.isclose(max(ratio, 1 / ratio), _WIDE, rel_tol=0.01):
        sides = int(lines[1]), int(lines[1]) * _WIDE
        most = sides if ratio > 1 else sides[::-1]
    return nearest_size(budget, ratio, multiple, most)


def nearest_size(
    pixels: int,
    ratio: float,
    multiple: tuple[int, int],
    most: tuple[float, float] = (math.inf, math.inf),
) -> tuple[int, int]:
    """Height and width nearest to `pixels` in area and to `ratio` (width / height) in shape.

    Both are multiples of `multiple`, and not above `most` unless one multiple is; nearness is the sum of the
    two absolute log ratios.
    """
    height = math.sqrt(pixels / ratio)
    candidates = itertools.product(
        _around(height, multiple[0], most[0]), _around(height * ratio, multiple[1], most[1])
    )
    return min(
        candidates,
        key=lambda size: (
            abs(math.log(size[0] * size[1] / pixels)) + abs(math.log(size[1] / size[0] / ratio)),
            size,
        ),
    )


def _around(value: float, multiple: int, most: float) -> list[int]:
    low = max(int(value // multiple), 1) * multiple
    return [low, low + multiple] if low + multiple <= most else [low]
