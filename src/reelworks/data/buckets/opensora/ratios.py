"""Named resolutions of Open-Sora 1.1 to 2.0 with their fixed or computed sizes, and the ratio nearest to a clip's."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelworks.core import toml
from reelworks.core.arrays import I64
from reelworks.core.errors import UserError, nearest

# width:height, as release 2.0 lists them; their inverses are used too.
COMPUTED_RATIOS = ("2.39:1", "2:1", "16:9", "1.85:1", "9:16", "5:8", "3:2", "4:3", "1:1")
# Divisor of the height and width of computed sizes; the default of release 2.0, which has 32 for its autoencoder of that
# stride.
COMPUTED_MULTIPLE = 16


@dataclass(frozen=True)
class Resolution:
    """A named resolution."""

    name: str
    pixels: int  # total pixels of a frame; a clip needs 0.8 of them
    keys: tuple[str, ...]  # names of the aspect ratios; of equally near ones, the first is chosen
    ratios: tuple[float, ...]  # height / width of each key, to which a clip's is compared
    sizes: tuple[tuple[int, int], ...]  # (height, width) of each key

    def nearest(self, height: NDArray[Any], width: NDArray[Any]) -> I64:
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
        return np.where((to_high < to_low) | ((to_high == to_low) & (high < low)), high, low)


def _read_tables() -> dict[str, Resolution]:
    tables = {}
    for name, values in toml.beside(__file__, "fixed_sizes.toml").items():
        keys, heights, widths = zip(*re.findall(r"(\S+)=(\d+)x(\d+)", values["sizes"]), strict=True)
        sizes = tuple(zip(map(int, heights), map(int, widths), strict=True))
        tables[name] = Resolution(name, values["pixels"], keys, tuple(map(float, keys)), sizes)
    base = tables["256"]
    for n in (2, 4, 8):
        name, sizes = str(256 * n), tuple((height * n, width * n) for height, width in base.sizes)
        tables[name] = replace(base, name=name, pixels=base.pixels * n * n, sizes=sizes)
    return tables


TABLES = _read_tables()


def resolution(name: str, *, computed: bool, multiple: int = COMPUTED_MULTIPLE) -> Resolution:
    """Look up "240p", "256", "2k" and so on, or compute the sizes of 2.0's "256px", "768px_ar16:9", "480p_max".

    With `computed`, "<N>p" is computed as 2.0 does even where a fixed table has that name. Computed heights and widths
    are multiples of `multiple`.
    """
    base, _, setting = name.partition("_")
    pixels = _computed_pixels(base)
    if name in TABLES and not (computed and pixels):
        return TABLES[name]
    if pixels is None:
        raise UserError(
            "this resolution is not known",
            code="unknown-resolution",
            field="buckets.opensora",
            value=name,
            remedy=f'{nearest(name, TABLES)} Other sizes: "<N>px" or "<N>p", optionally with "_max" or "_ar16:9"',
        )
    return _pin(Resolution(name, pixels, *_computed_sizes(pixels, multiple)), setting)


def _computed_pixels(base: str) -> int | None:
    """Return the pixels of "<N>px" or "<N>p", or None for other names."""
    match = re.fullmatch("([1-9][0-9]{0,4})(px|p)", base)
    if match is None:
        return None
    square = int(match[1]) ** 2
    return square if match[2] == "px" else int(square / 9 * 16)


def _computed_sizes(
    pixels: int, multiple: int
) -> tuple[tuple[str, ...], tuple[float, ...], tuple[tuple[int, int], ...]]:
    """Return keys, ratios and sizes of 2.0: of each listed ratio whose size is new, and its inverse with sides swapped.

    A ratio and the inverse of another may have the same size.
    """
    lying: dict[str, tuple[int, int]] = {}
    for text in COMPUTED_RATIOS:
        width, height = (float(part) for part in text.split(":"))
        if (size := _computed_size(pixels, width / height, multiple)) not in lying.values():
            lying[text] = size
    standing = {":".join(reversed(text.split(":"))): (width, height) for text, (height, width) in lying.items()}
    sizes = lying | standing
    ratios = (float(height) / float(width) for width, height in (text.split(":") for text in sizes))
    return tuple(sizes), tuple(ratios), tuple(sizes.values())


def _computed_size(pixels: int, ratio: float, d: int) -> tuple[int, int]:
    """Return multiples of d below the exact size, with one side a step up or down if that is nearer in pixels."""
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
