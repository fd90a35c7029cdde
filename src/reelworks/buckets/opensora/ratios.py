"""Resolutions by the names of Open-Sora v1.1 to 2.0, and the aspect ratio that is nearest to a clip's."""

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

# width:height, as release 2.0 lists them; each also counts the other way round.
COMPUTED_RATIOS = ("2.39:1", "2:1", "16:9", "1.85:1", "9:16", "5:8", "3:2", "4:3", "1:1")
# Height and width of computed sizes; what 2.0 takes unless its environment says otherwise.
COMPUTED_MULTIPLE = 16

# height:width → key of the fixed tables.
RATIO_NAMES = {
    "3:8": "0.38",
    "9:21": "0.43",
    "12:25": "0.48",
    "1:2": "0.50",
    "9:17": "0.53",
    "27:50": "0.54",
    "9:16": "0.56",
    "5:8": "0.62",
    "2:3": "0.67",
    "3:4": "0.75",
    "1:1": "1.00",
    "4:3": "1.33",
    "3:2": "1.50",
    "16:9": "1.78",
    "17:9": "1.89",
    "2:1": "2.00",
    "50:27": "2.08",
}


@dataclass(frozen=True)
class Resolution:
    """A named resolution.

    Attributes:
        name: As the table writes it.
        pixels: Pixels in all; a clip needs 0.8 of them.
        keys: Names of the aspect ratios, in the order in which ties are decided.
        ratios: height / width by which a clip chooses, one for each key.
        sizes: (height, width), one for each key.
    """

    name: str
    pixels: int
    keys: tuple[str, ...]
    ratios: tuple[float, ...]
    sizes: tuple[tuple[int, int], ...]

    def nearest(self, height: NDArray[Any], width: NDArray[Any]) -> NDArray[np.int64]:
        """Index of the ratio nearest to height / width; of two as near, the first in the table.

        Args:
            height: `[N]` pixels, above 0.
            width: `[N]` pixels, above 0.
        """
        wanted = np.asarray(height, dtype=np.float64) / np.asarray(width, dtype=np.float64)
        ratios = np.array(self.ratios)
        order = np.argsort(ratios, kind="stable")
        above = np.clip(np.searchsorted(ratios[order], wanted), 1, max(len(order) - 1, 1))
        low, high = order[above - 1], order[np.minimum(above, len(order) - 1)]
        # The same subtraction as upstream's, so that a tie here is a tie there.
        to_low, to_high = np.abs(ratios[low] - wanted), np.abs(ratios[high] - wanted)
        take_high = (to_high < to_low) | ((to_high == to_low) & (high < low))
        return np.where(take_high, high, low)


def size_of(resolution: str, ratio: str) -> tuple[int, int]:
    """Height and width of a fixed resolution at a ratio given by name (height:width, "9:16") or by key.

    Keys are compared as numbers: the releases look up "1.00" in tables that say "1.0", and fail.

    Raises:
        UserError: The resolution has no such ratio.
    """
    found = fixed(resolution)
    wanted = RATIO_NAMES.get(ratio, ratio)
    for key, size in zip(found.keys, found.sizes, strict=True):
        if key == wanted or (_is_number(wanted) and float(key) == float(wanted)):
            return size
    raise UserError(
        f'"{resolution}" has no such aspect ratio',
        code="unknown-aspect-ratio",
        field="ratio",
        value=ratio,
        remedy=f"its ratios (height / width) are {', '.join(found.keys)}",
    )


def resolution(name: str, *, computed: bool) -> Resolution:
    """Look a name up, or compute its sizes.

    Args:
        name: "240p", "256", "2k" and so on of the fixed tables, or 2.0's "256px", "768px_ar16:9",
            "480p_max".
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
            "there is no such resolution",
            code="unknown-resolution",
            field="buckets.opensora",
            value=name,
            remedy=f'{nearest(name, TABLES)} Else write "<N>px" or "<N>p", if wanted with "_max" or "_ar16:9"',
        )
    return _pin(Resolution(name, pixels, *_computed_sizes(pixels)), setting)


@functools.cache
def fixed(name: str) -> Resolution:
    """A resolution of the fixed tables of v1.1 and v1.2."""
    pixels, text = TABLES[name]
    pairs = [item.split("=") for item in text.split()]
    keys = tuple(key for key, _ in pairs)
    sizes = tuple((int(size.partition("x")[0]), int(size.partition("x")[2])) for _, size in pairs)
    return Resolution(name, pixels, keys, tuple(float(key) for key in keys), sizes)


def _computed_pixels(base: str) -> int | None:
    """Pixels of "<N>px" and "<N>p"."""
    match = re.fullmatch("([1-9][0-9]{0,4})(px|p)", base)
    if match is None:
        return None
    side = int(match[1])
    return side * side if match[2] == "px" else int(side * side / 9 * 16)


def _computed_sizes(
    pixels: int,
) -> tuple[tuple[str, ...], tuple[float, ...], tuple[tuple[int, int], ...]]:
    """Keys, ratios and sizes at the ratios of 2.0; of equal sizes the first stays."""
    found: dict[tuple[int, int], tuple[str, float]] = {}
    inverse = [":".join(reversed(text.split(":"))) for text in COMPUTED_RATIOS]
    for text in [*COMPUTED_RATIOS, *inverse]:
        width, height = (float(part) for part in text.split(":"))
        found.setdefault(_computed_size(pixels, width / height), (text, height / width))
    return tuple(k for k, _ in found.values()), tuple(r for _, r in found.values()), tuple(found)


def _computed_size(pixels: int, ratio: float) -> tuple[int, int]:
    """Multiples of 16 below the exact size, then one step up or down where that comes nearer in pixels."""
    d = COMPUTED_MULTIPLE
    width = max(int(math.sqrt(pixels * ratio) // d), 1) * d
    height = max(int(pixels / width // d), 1) * d
    steps = [(0, 0), (-d, 0), (d, 0), (0, -d), (0, d)]
    around = [(height + dh, width + dw) for dh, dw in steps if height + dh > 0 and width + dw > 0]
    return min(around, key=lambda size: abs(size[0] * size[1] - pixels))


def _pin(found: Resolution, setting: str) -> Resolution:
    """Keep one ratio: "max" the one with most pixels, "ar16:9" the one of that name (width:height)."""
    if not setting and not found.name.endswith("_"):
        return found
    if setting == "max":
        index = max(range(len(found.sizes)), key=lambda i: math.prod(found.sizes[i]))
    elif setting.removeprefix("ar") in found.keys and setting.startswith("ar"):
        index = found.keys.index(setting.removeprefix("ar"))
    else:
        raise UserError(
            "what follows the resolution is not known",
            code="unknown-resolution-suffix",
            field="buckets.opensora",
            value=found.name,
            remedy=f'write "_max", or "_ar" and one of {", ".join(found.keys)}',
        )
    one = slice(index, index + 1)
    return Resolution(found.name, found.pixels, found.keys[one], found.ratios[one], found.sizes[one])


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) is not None
