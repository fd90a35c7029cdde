"""Sizes of buckets, computed from a pixel budget, an aspect ratio and the model's multiple."""

from __future__ import annotations

import itertools
import math
import re

from reelworks.core.errors import UserError

_NUMBER = "([1-9][0-9]*)"


def pixel_budget(resolution: str) -> int | tuple[int, int]:
    """Read a resolution: pixels in all for "480p" and "512px", `(height, width)` for "480x854".

    Raises:
        UserError: It has none of the three forms.
    """
    if match := re.fullmatch(_NUMBER + "p", resolution):
        return int(match[1]) ** 2 * 16 // 9
    if match := re.fullmatch(_NUMBER + "px", resolution):
        return int(match[1]) ** 2
    if match := re.fullmatch(f"{_NUMBER}x{_NUMBER}", resolution):
        return int(match[1]), int(match[2])
    raise UserError(
        "not a resolution",
        field="bucket.resolution",
        value=resolution,
        remedy='write "480p" (480 lines at 16:9), "512px" (512 × 512 pixels in all) or "480x854" (one size)',
    )


def nearest_size(pixels: int, ratio: float, multiple: tuple[int, int]) -> tuple[int, int]:
    """Height and width nearest to `pixels` in area and to `ratio` (width / height) in shape.

    Both are multiples of `multiple`; nearness is the sum of the two absolute log ratios.
    """
    height = math.sqrt(pixels / ratio)
    candidates = itertools.product(_around(height, multiple[0]), _around(height * ratio, multiple[1]))
    return min(
        candidates,
        key=lambda size: (
            abs(math.log(size[0] * size[1] / pixels)) + abs(math.log(size[1] / size[0] / ratio)),
            size,
        ),
    )


def _around(value: float, multiple: int) -> list[int]:
    low = max(int(value // multiple), 1)
    return [low * multiple, (low + 1) * multiple]
