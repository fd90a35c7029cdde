"""Named resolutions of Open-Sora v1.1 to 2.0, and the aspect ratio nearest to a clip's."""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelworks.buckets.opensora.tables import TABLES
from reelworks.core.errors import UserError, nearest

# width:height, as release 2.0 lists them; their inverses are used too.
COMPUTED_RATIOS = ("2.39:1", "2:1", "16:9", "1.85:1", "9:16", "5:8", "3:2", "4:3", "1:1")
# Divisor of the height and width of computed sizes; the default of release 2.0.
COMPUTED_MULTIPLE = 16


@dataclass(frozen=True)
class Resolution:
    """A named resolution.

    Attributes:
        pixels: Total pixels of a frame; a clip needs 0.8 of them.
        keys: Names of the aspect ratios; of equally near ones, the first is chosen.
        ratios: height / width of each key, to which a clip's is compared.
        sizes: (height, width) of each key.
    """

    name: str
    pixels: int
    keys: tuple[str, ...]
    ratios: tuple[float, ...]
    sizes: tuple[tuple[int, int], ...]

    def nearest(self, height: NDArray[Any], width: NDArray[Any]) -> NDArray[np.int64]:
        """Return the index of the ratio nearest to height / width; of equally near ones, the first in the table.

        A table's ratios must differ by more than rounding errors, which could make three of them equally near.
        """
        wanted = np.asarray(height, dtype=np.float64) / np.asarray(width, dtype=np.float64)
        ratios = np.array(self.ratios)
        order = np.argsort(ratios, kind="stable")
        above = np.clip(np.searchsorted(ratios[order], wanted), 1, max(len(order) - 1, 1))
        low, high = order[above - 1], order[np.minimum(above, len(order) - 1)]
        # The same subtraction as upstream's, so that ties are the same.
        to_low, to_high = np.abs(ratios[low] - wanted), np.abs(ratios[high] - wanted)
        take_high = (to_high < to_low) | ((to_high == to_low) & (high < low))
        return np.where(take_high, high, low)


def resolution(name: str, *, computed: bool) -> Resolution:
    """Look a name up, or compute its sizes.

    Args:
        name: "240p", "256", "2k" and so on of the fixed tables, or 2.0's "256px", "768px_ar16:9", "480p_max".
        computed: Compute "<N>p" as 2.0 does even where a fixed table has that name.

    Raises:
        UserError: There is no such resolution or ratio.
    """
    base, _, setting = name.partition("_")
    pixels = _computed_pixels(base)
    if name in TABLES and not (computed and pixels):
        return fixed(name)
    if pixels is None:
        raise UserError(
            "this resolution is not known",
            code="unknown-resolution",
            field="buckets.opensora",
            value=name,
            remedy=f'{nearest(name, TABLES)} Other sizes: "<N>px" or "<N>p", optionally with "_max" or "_ar16:9"',
        )
    return _pin(Resolution(name, pixels, *_computed_sizes(pixels)), setting)


@functools.cache
def fixed(name: str) -> Resolution:
    """Return a resolution of the fixed tables of v1.1 and v1.2."""
    pixels, text = TABLES[name]
    pairs = [item.split("=") for item in text.split()]
    keys = tuple(key for key, _ in pairs)
    sizes = tuple((int(size.partition("x")[0]), int(size.partition("x")[2])) for _, size in pairs)
    return Resolution(name, pixels, keys, tuple(float(key) for key in keys), sizes)


def _computed_pixels(base: str) -> int | None:
    """Return the pixels of "<N>px" or "<N>p", or None for other names."""
    match = re.fullmatch("([1-9][0-9]{0,4})(px|p)", base)
    if match is None:
        return None
    square = int(match[1]) ** 2
    return square if match[2] == "px" else int(square / 9 * 16)


def _computed_sizes(pixels: int) -> tuple[tuple[str, ...], tuple[float, ...], tuple[tuple[int, int], ...]]:
    """Return keys, ratios and distinct sizes at the ratios of 2.0."""
    by_size: dict[tuple[int, int], tuple[str, float]] = {}
    inverse = [":".join(reversed(text.split(":"))) for text in COMPUTED_RATIOS]
    for text in [*COMPUTED_RATIOS, *inverse]:
        width, height = (float(part) for part in text.split(":"))
        by_size.setdefault(_computed_size(pixels, width / height), (text, height / width))
    return tuple(k for k, _ in by_size.values()), tuple(r for _, r in by_size.values()), tuple(by_size)


def _computed_size(pixels: int, ratio: float) -> tuple[int, int]:
    """Return multiples of 16 below the exact size, with one side a step up or down if that is nearer in pixels."""
    d = COMPUTED_MULTIPLE
    width = max(int(math.sqrt(pixels * ratio) // d), 1) * d
    height = max(int(pixels / width // d), 1) * d
    steps = [(0, 0), (-d, 0), (d, 0), (0, -d), (0, d)]
    around = [(height + dh, width + dw) for dh, dw in steps if height + dh > 0 and width + dw > 0]
    return min(around, key=lambda size: abs(size[0] * size[1] - pixels))


def _pin(base: Resolution, setting: str) -> Resolution:
    """Reduce a resolution to one ratio: "max" is that of most pixels, "ar16:9" that of this name (width:height)."""
    if not setting and not base.name.endswith("_"):
        return base
    if setting == "max":
        index = max(range(len(base.sizes)), key=lambda i: math.prod(base.sizes[i]))
    elif setting.removeprefix("ar") in base.keys and setting.startswith("ar"):
        index = base.keys.index(setting.removeprefix("ar"))
    else:
        raise UserError(
            "the suffix of the resolution is not known",
            code="unknown-resolution-suffix",
            field="buckets.opensora",
            value=base.name,
            remedy=f'write "_max", or "_ar" and one of {", ".join(base.keys)}',
        )
    at = slice(index, index + 1)
    return Resolution(base.name, base.pixels, base.keys[at], base.ratios[at], base.sizes[at])
