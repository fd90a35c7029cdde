"""Assignment of clips to the entries of an Open-Sora table, vectorised.

From the largest resolution down, a clip with at least 0.8 of its pixels tries the lengths that it has, longest
first, until one keeps it; it then stays at this resolution or moves on to the next lower one (where it tries all
lengths again). Pictures use the entries of one frame, videos all others. Each decision about a clip has its own
random draw.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from reelworks.buckets.opensora.ratios import Resolution
from reelworks.buckets.table import BucketTable, Entry
from reelworks.core import hash_rng

Places = NDArray[np.int64]

_RESOLUTION, _LENGTH = 1, 2


class Clips(Protocol):
    """Attributes of clips that the assignment needs, as arrays of equal length."""

    @property
    def num_frames(self) -> NDArray[np.int64]:
        """Frames after applying the frame interval."""

    @property
    def height(self) -> NDArray[np.int64]:
        """Height in pixels, as displayed."""

    @property
    def width(self) -> NDArray[np.int64]:
        """Width in pixels, as displayed."""

    @property
    def is_image(self) -> NDArray[np.bool_]:
        """True for pictures."""

    @property
    def held_out(self) -> NDArray[np.bool_]:
        """True for clips reserved for validation."""


@dataclass(frozen=True)
class DialectSizes:
    """Sizes of an entry of a table of Open-Sora."""

    resolution: Resolution
    first_bucket: int
    needed_pixels: float

    @classmethod
    def of_entry(cls, table: BucketTable, entry: int) -> DialectSizes:
        """Return the sizes of one entry of a table that has a dialect."""
        assert table.dialect is not None
        buckets = table.of_entry(entry)
        parsed = table.dialect.entries[entry]
        return cls(parsed.resolution, buckets[0] if buckets else -1, table.entries[entry].needed_pixels)

    def best(
        self, height_px: Places, width_px: Places, table: BucketTable
    ) -> tuple[NDArray[np.int32], NDArray[np.bool_], NDArray[np.bool_]]:
        """Return the bucket of the nearest aspect ratio, whether a clip is large enough, and True for any crop."""
        pick = self.resolution.nearest(np.maximum(height_px, 1), np.maximum(width_px, 1))
        large_enough = height_px * width_px >= self.needed_pixels
        return (self.first_bucket + pick).astype(np.int32), large_enough, np.ones(len(pick), dtype=np.bool_)


def take(
    clips: Clips,
    open_: NDArray[np.bool_],
    table: BucketTable,
    sizes: Sequence[DialectSizes],
    state: hash_rng.U64,
    bucket: NDArray[np.int32],
) -> None:
    """Assign clips to buckets.

    Args:
        clips: Clips of the catalog.
        open_: `[N]` mask of the clips to assign.
        table: Table with a dialect.
        sizes: Sizes of each entry.
        state: `[N]` hashes that each random draw about a clip extends.
        bucket: `[N]` output, which is set for the clips that are assigned.
    """
    assert table.dialect is not None
    area = clips.height * clips.width
    for is_image in (True, False):
        left = np.flatnonzero(open_ & (clips.is_image == is_image))
        numbered = [(i, e) for i, e in enumerate(table.entries) if (e.num_frames == 1) == is_image]
        for _, group in itertools.groupby(numbered, key=lambda pair: pair[1].resolution):
            entries = list(group)
            trying = left[area[left] >= entries[0][1].needed_pixels]
            for index, entry in entries:
                stays, trying = _ask(clips, entry, trying, state, table.dialect.resolution_first)
                choice, _, _ = sizes[index].best(clips.height[stays], clips.width[stays], table)
                bucket[stays] = choice
            left = left[bucket[left] < 0]


def _ask(
    clips: Clips, entry: Entry, trying: Places, state: hash_rng.U64, resolution_first: bool
) -> tuple[Places, Places]:
    """Return the clips that stay at an entry, and those that try the next shorter length of its resolution."""
    is_long = clips.num_frames[trying] >= entry.needed_frames
    shorter, trying = trying[~is_long], trying[is_long]
    if resolution_first:
        trying = trying[_stays(clips, entry, trying, state, _RESOLUTION)]
    stays_long = _stays(clips, entry, trying, state, _LENGTH)
    shorter, trying = np.concatenate([shorter, trying[~stays_long]]), trying[stays_long]
    if not resolution_first:
        trying = trying[_stays(clips, entry, trying, state, _RESOLUTION)]
    return trying, shorter


def _stays(clips: Clips, entry: Entry, where: Places, state: hash_rng.U64, decision: int) -> NDArray[np.bool_]:
    """Draw which clips stay; held-out clips stay if training clips may, so that validation never varies."""
    chance = entry.keep_prob if decision == _RESOLUTION else entry.keep_length
    if chance in (0.0, 1.0):
        return np.full(len(where), chance == 1.0)
    word = hash_rng.hash_int("opensora", entry.resolution, entry.num_frames, decision)
    return hash_rng.passes(hash_rng.extend(state[where], word), chance) | clips.held_out[where]
