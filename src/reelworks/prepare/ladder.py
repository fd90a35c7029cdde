"""Sizes and lengths to choose entries from, and the choice of a few of them for what clips have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reelworks.buckets import assign, sizes, table
from reelworks.buckets.assign import Clips
from reelworks.buckets.config import BucketEntryConfig, BucketsConfig
from reelworks.buckets.table import BucketTable
from reelworks.core.shape import Geometry, Shape

NEARLY_ALL = 0.98
# A rung more is worth it if clips keep a tenth more on average.
_LEAST_GAIN = 0.1
# All but 5 are both 4n+1 and 8n+1, which every video autoencoder in use takes.
_FRAMES = (5, 9, 17, 33, 49, 65, 81, 97, 121)


@dataclass(frozen=True)
class Ladder:
    """Sizes, smallest first.

    Attributes:
        names: As `bucket.resolution` has them.
        table: One entry of one frame for each; entry `-1 - i` is that of rung `i`.
        geometry: What the model takes.
    """

    names: tuple[str, ...]
    table: BucketTable
    geometry: Geometry

    @classmethod
    def of(cls, steps: Sequence[int | str], config: BucketsConfig, geometry: Geometry) -> Ladder:
        """Those of `steps` (sides of squares, or resolutions) that the model takes and that differ.

        The model's multiple is the lowest. Clips are never enlarged here, else all would fill all.
        """
        multiple = max(geometry.multiple)
        names = [f"{step}px" if isinstance(step, int) else step for step in (multiple, *steps)]
        by_pixels = {_pixels(name): name for name in names if _pixels(name) >= multiple**2}
        rules = config.model_copy(update={"entries": "given", "upscale": False})
        shapes: dict[tuple[Shape, ...], str] = {}
        for _, name in sorted(by_pixels.items()):
            one = table.build([BucketEntryConfig(resolution=name, num_frames=1)], rules, geometry)
            shapes.setdefault(tuple(bucket.shape for bucket in one.buckets), name)
        chosen = tuple(shapes.values())
        entries = [BucketEntryConfig(resolution=name, num_frames=1) for name in chosen]
        return cls(chosen, table.build(entries, rules, geometry), geometry)

    @property
    def worth(self) -> NDArray[np.float64]:
        """What a clip has at each rung, as a logarithm."""
        return np.log([_pixels(name) for name in self.names])

    def highest(self, height: NDArray[np.int64], width: NDArray[np.int64]) -> NDArray[np.int64]:
        """The highest rung that each clip fills, -1 where it fills none."""
        n = len(height)
        clips = Clips(
            uid=np.zeros(n, dtype=np.uint64),
            copy=np.zeros(n, dtype=np.int64),
            num_frames=np.ones(n, dtype=np.int64),
            height=height,
            width=width,
            is_image=np.ones(n, dtype=np.bool_),
            excluded=np.zeros(n, dtype=np.int8),
            held_out=np.zeros(n, dtype=np.bool_),
        )
        bucket = assign.assign(clips, self.table, seed=0, epoch=0).bucket
        entry = np.array([one.entry for one in self.table.buckets], dtype=np.int64)
        rung: NDArray[np.int64] = np.where(bucket >= 0, len(self.names) - 1 - entry[bucket], -1)
        return rung

    def tokens(self, rung: int, num_frames: int) -> int:
        """Most latent tokens that one clip has at a rung, whatever its aspect ratio."""
        buckets = self.table.of_entry(len(self.names) - 1 - rung)
        shapes = [self.table.buckets[i].shape for i in buckets]
        return max(self.geometry.tokens(Shape(num_frames, s.height, s.width)) for s in shapes)


def frame_counts(geometry: Geometry) -> NDArray[np.int64]:
    """Lengths of videos that the model takes, near the usual ones, and the shortest."""
    a, b = geometry.frame_rule
    if a == 0:
        return np.zeros(0, dtype=np.int64)
    usual = {(frames - b) // a * a + b for frames in _FRAMES}
    shortest = next(n for n in range(2, 2 + a + b) if geometry.accepts_frames(n))
    return np.array(sorted({shortest} | {n for n in usual if n > shortest}), dtype=np.int64)


def rungs(highest: NDArray[np.int64], worth: NDArray[np.float64], most: int) -> list[int]:
    """Choose rungs, the highest first: the highest that nearly all reach, and what keeps most of the others.

    Args:
        highest: The highest rung of each clip; those of -1 are not looked at.
        worth: What a clip has at each rung, as a logarithm.
        most: Rungs to choose at most.

    Returns:
        None where no clip reaches any.
    """
    count = np.bincount(highest[highest >= 0], minlength=len(worth))
    total = count.sum()
    if not total:
        return []
    reach = np.cumsum(count[::-1])[::-1] / total
    chosen = [int(np.flatnonzero(reach >= NEARLY_ALL)[-1])]
    rung = np.arange(len(worth))
    while len(chosen) < most:
        has = np.max([np.where(rung >= c, worth[c], worth[chosen[0]]) for c in chosen], axis=0)
        gains = [(count[r:] * np.maximum(worth[r] - has[r:], 0)).sum() / total for r in rung]
        best = int(np.argmax(gains))
        if gains[best] < _LEAST_GAIN:
            break
        chosen.append(best)
    return sorted(chosen, reverse=True)


def _pixels(resolution: str) -> int:
    budget = sizes.pixel_budget(resolution)
    return budget if isinstance(budget, int) else budget[0] * budget[1]
