"""Directories of a dataset TOML of diffusion-pipe: their settings, those of the top of the file included, and buckets."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Any

import numpy as np

from reelworks.annexes.imports import values
from reelworks.annexes.imports.draft import FormerSettings

_MOST_BUCKETS = 1000
_DIGITS = 3  # to which aspect ratios and sides are rounded


@dataclass(frozen=True)
class Directory:
    """A `[[directory]]`.

    Attributes:
        sides: Sides of squares, to whose areas each clip is brought, one after the other.
        ratios: Aspect ratios, as width / height.
        frames: Frame counts, ascending, with 1 for pictures.
        sizes: Fixed sizes as (width, height, frames) in place of the three above; the longest first.
        repeats: Passes over its clips in an epoch.
        shuffled: Number of captions with shuffled tags, each of which is an example of its own; 0 if none is shuffled.
    """

    sides: tuple[float, ...]
    ratios: tuple[float, ...]
    frames: tuple[int, ...]
    sizes: tuple[tuple[int, int, int], ...]
    repeats: float
    shuffled: int

    @property
    def uses(self) -> float:
        """Number of examples that a clip makes in an epoch at one size."""
        return self.repeats * max(self.shuffled, 1)


def directories(settings: FormerSettings) -> list[Directory]:
    """Return the directories; raises `ValueError` or `TypeError` for settings that the trainer would not take."""
    return [_directory(settings, number) for number in range(settings.count("directory"))]


def of_directory(settings: FormerSettings, number: int, name: str, default: Any = None) -> Any:
    """Return a setting of a directory, or else that of the top of the file."""
    return settings.get(f"directory.{number}.{name}", settings.get(name, default))


def _directory(settings: FormerSettings, number: int) -> Directory:
    def get(name: str, default: Any = None) -> Any:
        return of_directory(settings, number, name, default)

    sizes = tuple(starmap(fixed_size, get("size_buckets") or ()))
    shuffled = values.whole(get("cache_shuffle_num", 0), 0)
    return Directory(
        sides=() if sizes else tuple(sorted({round(_side(each), _DIGITS) for each in _list(get("resolutions", ()))})),
        ratios=() if sizes else tuple(sorted({round(each, _DIGITS) for each in _ratios(get)})),
        frames=tuple(sorted({1, *(values.whole(each) for each in _list(get("frame_buckets", [1])))})),
        sizes=tuple(sorted(sizes, key=lambda size: size[2], reverse=True)),
        repeats=values.number(get("num_repeats", 1), 1e-6, values.MOST),
        shuffled=shuffled or int(values.flag(get("shuffle_tags", False))),
    )


def _list(value: Any) -> Sequence[Any]:
    if not isinstance(value, list | tuple) or len(value) > _MOST_BUCKETS:
        raise ValueError("no list")
    return value


def _side(value: Any) -> float:
    """Return a side, or that of a square with the area of a pair."""
    if isinstance(value, list):
        width, height = value
        return math.sqrt(values.number(width, 1, 1e5) * values.number(height, 1, 1e5))
    return values.number(value, 1, 1e5)


def fixed_size(width: Any, height: Any, frames: Any) -> tuple[int, int, int]:
    """Return an entry of size_buckets."""
    return values.whole(width, 1, 10**5), values.whole(height, 1, 10**5), values.whole(frames)


def _ratios(get: Any) -> Iterator[float]:
    if not values.flag(get("enable_ar_bucket", False)):
        yield 1.0
    elif given := get("ar_buckets"):
        for each in _list(given):
            width, height = each if isinstance(each, list) else (each, 1)
            yield values.number(width, 1e-3, 1e5) / values.number(height, 1e-3, 1e5)
    else:
        low, high = (values.number(get(name), 1e-3, 1e3) for name in ("min_ar", "max_ar"))
        yield from np.geomspace(low, high, values.whole(get("num_ar_buckets"), 1, _MOST_BUCKETS)).tolist()


def batch_size(given: Any, side: float) -> int:
    """Return the micro-batch size for a side: one number, or that of the nearest of a list of pairs."""
    if isinstance(given, list):
        pairs = [(values.number(size), values.whole(number)) for size, number in given]
        return min(pairs, key=lambda pair: abs(pair[0] - side))[1]
    return values.whole(given)
