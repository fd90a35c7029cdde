"""Sizes into which both trainers sort pictures and videos of any size: those of nearly one area, by aspect ratio."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from reelworks.annexes.imports.clip import Clip

Size = tuple[int, int]  # width and height in pixels


class AspectBuckets(NamedTuple):
    """Sizes to choose from, and what becomes of clips that are smaller than their area.

    Attributes:
        sizes: The sizes, in order.
        step_px: What all sides are multiples of.
        area_px: Pixels of the resolution.
        keeps_small: Clips of at most this area keep their size, cut to multiples of the step.
        keeps_shape: Larger clips are scaled to the area in their own shape, and the sizes are not used.
        prefers_exact: A clip that has one of the sizes keeps it, even if another one is as near in shape.
    """

    sizes: tuple[Size, ...]
    step_px: int
    area_px: int
    keeps_small: bool = False
    keeps_shape: bool = False
    prefers_exact: bool = False

    def choose(self, clip: Size) -> Size | None:
        """Return the size that a clip gets; None if a side of it would be 0, at which the trainer stops."""
        chosen = self._choose(clip)
        return chosen if min(chosen) > 0 else None

    def _choose(self, clip: Size) -> Size:
        width, height = clip
        if self.keeps_small and width * height <= self.area_px:
            return width - width % self.step_px, height - height % self.step_px
        if self.keeps_shape:
            return self._scaled(width / height)
        if self.prefers_exact and clip in self.sizes:
            return clip
        return self.sizes[int(np.abs(_ratios(self.sizes) - width / height).argmin())]

    def _scaled(self, ratio: float) -> Size:
        """Round one side of a clip that is scaled to the area: the one that changes its shape less."""
        width = math.sqrt(self.area_px * ratio)
        by_width, by_height = self._round(width), self._round(self.area_px / width)
        height_then, width_then = self._round(by_width / ratio), self._round(by_height * ratio)
        if not (by_height and height_then):
            return 0, 0
        if abs(by_width / height_then - ratio) < abs(width_then / by_height - ratio):
            resized = by_width, int(by_width / ratio + 0.5)
        else:
            resized = int(by_height * ratio + 0.5), by_height
        return resized[0] - resized[0] % self.step_px, resized[1] - resized[1] % self.step_px

    def _round(self, side: float) -> int:
        nearest = int(side + 0.5)
        return nearest - nearest % self.step_px


@lru_cache(maxsize=64)
def _ratios(sizes: tuple[Size, ...]) -> np.ndarray:
    return np.array([width / height for width, height in sizes])


def batches(clips: Mapping[Size, float] | Mapping[tuple[int, ...], float], batch_size: int) -> int:
    """Return the number of batches of buckets with these numbers of clips: the last of a bucket may have fewer."""
    return sum(math.ceil(number / batch_size) for number in clips.values())


def by_dataset(clips: Sequence[Clip]) -> dict[int, list[int]]:
    """Return the places of clips by the number of their dataset."""
    owned: dict[int, list[int]] = defaultdict(list)
    for place, clip in enumerate(clips):
        owned[clip.dataset].append(place)
    return owned


def one_size(size: Size) -> AspectBuckets:
    """Return the single size of a dataset without buckets."""
    return AspectBuckets((size,), 1, size[0] * size[1])


def choose_all(buckets: AspectBuckets, clips: Sequence[Size]) -> list[Size | None]:
    """Return the size that each clip gets."""
    chosen = {clip: buckets.choose(clip) for clip in set(clips)}
    return [chosen[clip] for clip in clips]
