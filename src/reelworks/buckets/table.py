"""The bucket table: entries in the order in which clips try them, each at its sizes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reelworks.buckets import sizes
from reelworks.buckets.config import BucketEntryConfig, BucketsConfig, parse_ratio
from reelworks.core.errors import UserError
from reelworks.core.shape import Geometry, Shape


@dataclass(frozen=True)
class Entry:
    """A resolution at one frame count; `size` is (height, width) where the resolution names one."""

    resolution: str
    pixels: int
    num_frames: int
    batch_size: int
    keep_prob: float
    size: tuple[int, int] | None = None

    @property
    def draw_words(self) -> tuple[int, ...]:
        """What sets this entry's draws apart from those of others, whatever else the table holds."""
        return (self.pixels, self.num_frames, *(self.size or ()))

    def __str__(self) -> str:
        return f"{self.resolution} ×{self.num_frames}"


@dataclass(frozen=True)
class Bucket:
    """An entry at one aspect ratio: one exact shape."""

    entry: int
    ratio: str
    shape: Shape
    name: str
    batch_size: int
    tokens: int


@dataclass(frozen=True)
class BucketTable:
    """Entries by pixels and then by frames, descending; buckets entry by entry."""

    entries: tuple[Entry, ...]
    buckets: tuple[Bucket, ...]
    upscale: bool
    max_crop: float

    def of_entry(self, entry: int) -> list[int]:
        """Indices of an entry's buckets."""
        return [i for i, bucket in enumerate(self.buckets) if bucket.entry == entry]

    def batch_sizes(self) -> NDArray[np.int64]:
        """Batch size of every bucket."""
        return np.array([b.batch_size for b in self.buckets], dtype=np.int64)

    def tokens(self) -> NDArray[np.int64]:
        """Latent tokens of one clip of every bucket."""
        return np.array([b.tokens for b in self.buckets], dtype=np.int64)


def build(entries: Sequence[BucketEntryConfig], config: BucketsConfig, geometry: Geometry) -> BucketTable:
    """Compute the table.

    Args:
        entries: `[[bucket]]` entries of a recipe.
        config: `[buckets]`.
        geometry: Multiples and frame rule of the model and its autoencoder.

    Raises:
        UserError: No entry, two equal entries, a frame count or a size that the model does not take.
    """
    if not entries:
        raise UserError(
            "the recipe has no bucket",
            field="bucket",
            remedy='add e.g. [[bucket]] resolution = "256px", num_frames = [1, 17]',
        )
    expanded = sorted(
        (entry for config_entry in entries for entry in _expand(config_entry, config, geometry)),
        key=lambda e: (-e.pixels, -e.num_frames, e.size or ()),
    )
    for first, second in itertools.pairwise(expanded):
        _refuse_equal(first, second)
    buckets = [b for i, e in enumerate(expanded) for b in _sizes_of(i, e, config, geometry)]
    return BucketTable(tuple(expanded), tuple(buckets), config.upscale, config.max_crop)


def _refuse_equal(first: Entry, second: Entry) -> None:
    """A clip could not tell which of two entries comes first; only sizes of unlike shape may be as large."""
    alike = first.size is None or second.size is None or first.size == second.size
    if alike and (first.pixels, first.num_frames) == (second.pixels, second.num_frames):
        raise UserError(
            "two entries have the same resolution and number of frames",
            field="bucket",
            value=f"{first} and {second}",
            remedy="remove one of them",
        )


def _expand(entry: BucketEntryConfig, config: BucketsConfig, geometry: Geometry) -> list[Entry]:
    budget = sizes.pixel_budget(entry.resolution)
    pixels = budget if isinstance(budget, int) else budget[0] * budget[1]
    result = []
    for frames, batch, keep in zip(entry.frames(), entry.batch_sizes(), entry.keep_probs(), strict=True):
        if not geometry.accepts_frames(frames):
            a, b = geometry.frame_rule
            below = (frames - b) // a * a + b
            raise UserError(
                f"this model takes {a}n+{b} frames",
                field="bucket.num_frames",
                value=frames,
                remedy=f"use {max(below, 1)} or {below + a}",
            )
        size = budget if isinstance(budget, tuple) else None
        result.append(Entry(entry.resolution, pixels, frames, batch or config.batch_size, keep, size))
    return result


def _sizes_of(index: int, entry: Entry, config: BucketsConfig, geometry: Geometry) -> list[Bucket]:
    budget = sizes.pixel_budget(entry.resolution)
    chosen: dict[tuple[int, int], str] = {}
    if isinstance(budget, tuple):
        _check_multiple(entry, budget, geometry)
        chosen[budget] = f"{budget[1]}:{budget[0]}"
    else:
        for text in config.aspect_ratios:
            size = sizes.nearest_size(budget, parse_ratio(text), geometry.multiple)
            chosen.setdefault(size, text)
    result = []
    for (height, width), ratio in chosen.items():
        shape = Shape(entry.num_frames, height, width)
        name = f"{entry.resolution} {ratio} ×{entry.num_frames}"
        result.append(Bucket(index, ratio, shape, name, entry.batch_size, geometry.tokens(shape)))
    return result


def _check_multiple(entry: Entry, size: tuple[int, int], geometry: Geometry) -> None:
    if size[0] % geometry.multiple[0] or size[1] % geometry.multiple[1]:
        ratio = size[1] / size[0]
        height, width = sizes.nearest_size(size[0] * size[1], ratio, geometry.multiple)
        raise UserError(
            f"this model takes multiples of {geometry.multiple[0]} × {geometry.multiple[1]} pixels",
            field="bucket.resolution",
            value=entry.resolution,
            remedy=f'use "{height}x{width}"',
        )
