"""Named resolutions of Open-Sora 1.1 to 2.0 with their fixed or computed sizes, and the ratio nearest to a clip's."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    for block in _TABLES.strip().split("\n\n"):
        name, pixels, *pairs = block.split()
        keys = tuple(pair.partition("=")[0] for pair in pairs)
        sizes = tuple((int(h), int(w)) for h, w in re.findall("=([0-9]+)x([0-9]+)", block))
        tables[name] = Resolution(name, int(pixels), keys, tuple(float(key) for key in keys), sizes)
    base = tables["256"]
    for n in (2, 4, 8):
        name, sizes = str(256 * n), tuple((height * n, width * n) for height, width in base.sizes)
        tables[name] = replace(base, name=name, pixels=base.pixels * n * n, sizes=sizes)
    return tables


# The fixed sizes of 1.1 and 1.2: after a name and its pixels, ratio=heightxwidth. A ratio is height / width as the
# releases write it, with two decimals. The order matters: of two ratios equally near to a clip's, the first is chosen,
# and those of "4k" are not ascending. Sizes are those that the releases train on and differ from those computed from
# the ratios; many have no common divisor. Those of 512, 1024 and 2048 are multiples of those of 256.
_TABLES = """
144p 36864
0.38=117x312 0.43=125x291 0.48=133x277 0.50=135x270 0.53=139x262 0.54=141x260 0.56=144x256 0.62=151x241 0.67=156x234
0.75=166x221 1.00=192x192 1.33=221x165 1.50=235x156 1.78=256x144 1.89=263x139 2.00=271x135 2.08=277x132

256 65536
0.25=128x512 0.26=128x496 0.27=128x480 0.28=128x464 0.32=144x448 0.33=144x432 0.35=144x416 0.4=160x400 0.42=160x384
0.48=176x368 0.5=176x352 0.52=176x336 0.57=192x336 0.6=192x320 0.68=208x304 0.72=208x288 0.78=224x288 0.82=224x272
0.88=240x272 0.94=240x256 1.0=256x256 1.07=256x240 1.13=272x240 1.21=272x224 1.29=288x224 1.38=288x208 1.46=304x208
1.67=320x192 1.75=336x192 2.0=352x176 2.09=368x176 2.4=384x160 2.5=400x160 2.89=416x144 3.0=432x144 3.11=448x144
3.62=464x128 3.75=480x128 3.88=496x128 4.0=512x128

240p 102240
0.38=196x522 0.43=210x490 0.48=222x462 0.50=226x452 0.53=232x438 0.54=236x436 0.56=240x426 0.62=252x404 0.67=262x393
0.75=276x368 1.00=320x320 1.33=370x278 1.50=392x262 1.78=426x240 1.89=440x232 2.00=452x226 2.08=462x222

360p 230400
0.38=294x784 0.43=314x732 0.48=332x692 0.50=340x680 0.53=350x662 0.54=352x652 0.56=360x640 0.62=380x608 0.67=392x588
0.75=416x554 1.00=480x480 1.33=554x416 1.50=588x392 1.78=640x360 1.89=660x350 2.00=678x340 2.08=692x332

480p 409920
0.38=392x1046 0.43=420x980 0.48=444x925 0.50=452x904 0.53=466x880 0.54=470x870 0.56=480x854 0.62=506x810 0.67=522x784
0.75=554x738 1.00=640x640 1.33=740x555 1.50=784x522 1.78=854x480 1.89=880x466 2.00=906x454 2.08=924x444

720p 921600
0.38=588x1568 0.43=628x1466 0.48=666x1388 0.50=678x1356 0.53=698x1318 0.54=706x1306 0.56=720x1280 0.62=758x1212
0.67=784x1176 0.75=832x1110 1.00=960x960 1.33=1108x832 1.50=1176x784 1.78=1280x720 1.89=1320x698 2.00=1358x680
2.08=1386x666

1080p 2073600
0.38=882x2352 0.43=942x2198 0.48=998x2080 0.50=1018x2036 0.53=1048x1980 0.54=1058x1958 0.56=1080x1920 0.62=1138x1820
0.67=1176x1764 0.75=1248x1664 1.00=1440x1440 1.33=1662x1246 1.50=1764x1176 1.78=1920x1080 1.89=1980x1048 2.00=2036x1018
2.08=2078x998

2k 3686400
0.38=1176x3136 0.43=1256x2930 0.48=1330x2770 0.50=1358x2716 0.53=1398x2640 0.54=1412x2612 0.56=1440x2560 0.62=1518x2428
0.67=1568x2352 0.75=1662x2216 1.00=1920x1920 1.33=2218x1664 1.50=2352x1568 1.78=2560x1440 1.89=2638x1396 2.00=2716x1358
2.08=2772x1330

2880 8294400
0.25=1408x5760 0.26=1408x5568 0.27=1408x5376 0.28=1408x5184 0.32=1600x4992 0.33=1600x4800 0.34=1600x4672 0.4=1792x4480
0.42=1792x4288 0.47=1920x4096 0.49=1920x3904 0.51=1920x3776 0.55=2112x3840 0.59=2112x3584 0.68=2304x3392 0.72=2304x3200
0.78=2496x3200 0.83=2496x3008 0.89=2688x3008 0.93=2688x2880 1.0=2880x2880 1.07=2880x2688 1.12=3008x2688 1.21=3008x2496
1.28=3200x2496 1.39=3200x2304 1.47=3392x2304 1.7=3584x2112 1.82=3840x2112 2.03=3904x1920 2.13=4096x1920 2.39=4288x1792
2.5=4480x1792 2.92=4672x1600 3.0=4800x1600 3.12=4992x1600 3.68=5184x1408 3.82=5376x1408 3.95=5568x1408 4.0=5760x1408

4k 8294400
0.38=1764x4704 0.43=1886x4400 0.48=1996x4158 0.50=2036x4072 0.53=2096x3960 0.54=2118x3918 0.62=2276x3642 0.56=2160x3840
0.67=2352x3528 0.75=2494x3326 1.00=2880x2880 1.33=3326x2494 1.50=3528x2352 1.78=3840x2160 1.89=3958x2096 2.00=4072x2036
2.08=4156x1994
"""
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
