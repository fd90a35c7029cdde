"""Assignment of each clip to a bucket, or to a reason from a closed list; vectorised over a catalog.

A clip tries the entries by pixels and then by frames, descending, and takes the first that it fills and
whose `keep_prob` its random draw passes. Pictures use entries of one frame, videos all others. If the table
extends short videos, one that is too short for every entry whose size it fills takes the shortest of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from reelworks.buckets.opensora import walk
from reelworks.buckets.opensora.walk import DialectSizes
from reelworks.buckets.table import Bucket, BucketTable, Entry
from reelworks.core import hash_rng
from reelworks.core.hash_rng import Purpose

U64 = NDArray[np.uint64]
I32 = NDArray[np.int32]

# Number of clips assigned at a time; small enough that intermediate results stay in the processor's cache.
_BLOCK = 1 << 16


class Reason(IntEnum):
    """Reason why a clip is not in an epoch; `NONE` if it is."""

    NONE = 0
    UNREADABLE = 1
    IN_EXCLUDE_FILE = 2
    NO_CAPTION = 3
    FILTERED = 4
    TOO_SHORT = 5
    TOO_SMALL = 6
    NO_BUCKET = 7
    HELD_OUT = 8
    NOT_DRAWN = 9
    NO_COMPANION = 10

    @property
    def label(self) -> str:
        """The name in reports."""
        return self.name.lower()


@dataclass(frozen=True)
class Clips:
    """Clips to be assigned, as arrays of equal length.

    Attributes:
        uid: Identity of the clip.
        copy: Index of the repeat, from 0.
        num_frames: Frames after applying the frame interval; 1 for a picture.
        height: Height in pixels, as displayed.
        width: Width in pixels, as displayed.
        is_image: True for pictures.
        excluded: `Reason` to exclude the clip whatever its shape, or `Reason.NONE`.
        held_out: True for clips reserved for validation.
    """

    uid: NDArray[np.uint64]
    copy: NDArray[np.int64]
    num_frames: NDArray[np.int64]
    height: NDArray[np.int64]
    width: NDArray[np.int64]
    is_image: NDArray[np.bool_]
    excluded: NDArray[np.int8]
    held_out: NDArray[np.bool_]

    def take(self, where: NDArray[np.int64]) -> Clips:
        """Return the clips at these indices."""
        return Clips(**{name: column[where] for name, column in vars(self).items()})


@dataclass(frozen=True)
class Assignment:
    """Result of the assignment, with one element for each clip.

    Attributes:
        bucket: Index into the table's buckets, or -1. Held-out clips have a bucket too.
        reason: `Reason` why the epoch does not train the clip, or `Reason.NONE`.
        nearest: For clips that fit no entry, the entry that they miss by the least; else -1.
    """

    bucket: NDArray[np.int32]
    reason: NDArray[np.int8]
    nearest: NDArray[np.int32]


def held_out(seed: int, group: NDArray[np.uint64], share: float) -> NDArray[np.bool_]:
    """Return which groups are held out for validation, chosen by hash, the same in every epoch and world size."""
    return hash_rng.passes(hash_rng.hash64(seed, Purpose.HOLD_OUT, group), share)


def assign(clips: Clips, table: BucketTable, *, seed: int, epoch: int) -> Assignment:
    """Assign every clip to a bucket or a reason for one epoch.

    Held-out clips are assigned without a random draw (an entry of `keep_prob` 0 still takes none), so that
    validation uses the same shapes in every epoch.
    """
    n = len(clips.uid)
    count = range(len(table.entries))
    sizes = [_Sizes.of_entry(table, i) for i in count] if table.dialect is None else []
    dialect_sizes = [] if table.dialect is None else [DialectSizes.of_entry(table, i) for i in count]
    result = Assignment(np.full(n, -1, np.int32), clips.excluded.astype(np.int8), np.full(n, -1, np.int32))
    for first in range(0, n, _BLOCK):
        where = slice(first, first + _BLOCK)
        block = Clips(**{name: column[where] for name, column in vars(clips).items()})
        state = hash_rng.hash64(seed, epoch, block.uid, block.copy, Purpose.KEEP)
        bucket, reason, nearest = result.bucket[where], result.reason[where], result.nearest[where]
        if table.dialect is None:
            for is_image in (True, False):
                _take(block, table, sizes, state, is_image, bucket)
        else:
            walk.take(block, reason == Reason.NONE, table, dialect_sizes, state, bucket)
        if table.extends_short:
            block = _take_short(block, table, dialect_sizes or sizes, state, bucket)
        lost = np.flatnonzero((reason == Reason.NONE) & (bucket < 0))
        reason[(bucket >= 0) & block.held_out] = Reason.HELD_OUT
        reason[lost], nearest[lost] = _explain(block.take(lost), table, dialect_sizes or sizes)
    return result


def _take(clips: Clips, table: BucketTable, sizes: list[_Sizes], state: U64, is_image: bool, bucket: I32) -> None:
    """Assign the clips of one kind to the entries in turn; each entry takes from those that are left."""
    left = np.flatnonzero((clips.excluded == Reason.NONE) & (clips.is_image == is_image))
    for index, entry in enumerate(table.entries):
        if (entry.num_frames == 1) != is_image or not len(left):
            continue
        open_ = left[clips.num_frames[left] >= entry.num_frames]
        if entry.keep_prob < 1:
            drawn = hash_rng.passes(hash_rng.extend(state[open_], *entry.draw_words), entry.keep_prob)
            # An entry that training never uses is not used for validation either.
            open_ = open_[drawn | (clips.held_out[open_] & (entry.keep_prob > 0))]
        choice, large_enough, shape_fits = sizes[index].best(clips.height[open_], clips.width[open_], table)
        fits = large_enough & shape_fits
        bucket[open_[fits]] = choice[fits]
        left = left[bucket[left] < 0]


def _take_short(
    clips: Clips, table: BucketTable, sizes: Sequence[_Sizes | DialectSizes], state: U64, bucket: I32
) -> Clips:
    """Assign videos that are too short for every entry whose size they fill to the shortest of these.

    Returns:
        The clips, with these videos as long as any entry needs, so that `_explain` does not call them too short.
    """
    at = np.flatnonzero((clips.excluded == Reason.NONE) & ~clips.is_image & (bucket < 0))
    shortest = np.full(len(at), -1, dtype=np.int64)
    choice = np.full(len(at), -1, dtype=np.int32)
    short = np.ones(len(at), dtype=np.bool_)
    used = [i for i, e in enumerate(table.entries) if e.keep_prob > 0 and e.keep_length > 0]
    videos = [i for i in used if table.entries[i].num_frames > 1]
    for index in sorted(videos, key=lambda i: table.entries[i].num_frames):
        pick, large_enough, shape_fits = sizes[index].best(clips.height[at], clips.width[at], table)
        fits = large_enough & shape_fits
        short &= ~fits | (clips.num_frames[at] < table.entries[index].needed_frames)
        first = fits & (shortest < 0)
        shortest[first], choice[first] = index, pick[first]
    num_frames = clips.num_frames.copy()
    num_frames[at[short]] = max((e.needed_frames for e in table.entries), default=1)
    for index in videos:
        mine = np.flatnonzero(short & (shortest == index))
        entry, where = table.entries[index], at[mine]
        drawn = hash_rng.passes(hash_rng.extend(state[where], *entry.draw_words), entry.keep_prob)
        taken = drawn | clips.held_out[where]
        bucket[where[taken]] = choice[mine[taken]]
    return replace(clips, num_frames=num_frames)


def _explain(clips: Clips, table: BucketTable, sizes: Sequence[_Sizes | DialectSizes]) -> tuple[NDArray[np.int8], I32]:
    """Return the reason of each clip that no entry took, and the nearest entry of those that fit none."""
    n = len(clips.uid)
    short, small = np.ones(n, dtype=np.bool_), np.ones(n, dtype=np.bool_)
    fits_any, kind_known = np.zeros(n, dtype=np.bool_), np.zeros(n, dtype=np.bool_)
    for index, entry in enumerate(table.entries):
        right_kind = clips.is_image == (entry.num_frames == 1)
        kind_known |= right_kind
        at = np.flatnonzero(right_kind & (clips.num_frames >= entry.needed_frames))
        _, large_enough, shape_fits = sizes[index].best(clips.height[at], clips.width[at], table)
        short[at] = False
        small[at] &= ~large_enough
        fits_any[at] |= large_enough & shape_fits
    reason = np.full(n, Reason.NO_BUCKET, dtype=np.int8)
    reason[kind_known & small] = Reason.TOO_SMALL
    reason[kind_known & short] = Reason.TOO_SHORT
    reason[fits_any] = Reason.NOT_DRAWN
    nearest, nowhere = np.full(n, -1, dtype=np.int32), np.flatnonzero(~fits_any)
    nearest[nowhere] = _nearest_entry(clips.take(nowhere), table)
    return reason, nearest


@dataclass(frozen=True)
class _Sizes:
    """Sizes of an entry by width / height, ascending; `edges` lie half way between their log ratios."""

    bucket: I32
    height: NDArray[np.float64]
    width: NDArray[np.float64]
    edges: NDArray[np.float64]

    @classmethod
    def of_entry(cls, table: BucketTable, entry: int) -> _Sizes:
        bucket = np.array(table.of_entry(entry), dtype=np.int32)
        height = np.array([table.buckets[i].shape.height for i in bucket], dtype=np.float64)
        width = np.array([table.buckets[i].shape.width for i in bucket], dtype=np.float64)
        order = np.argsort(np.log(width / height), kind="stable")
        ratios = np.log(width / height)[order]
        return cls(bucket[order], height[order], width[order], (ratios[1:] + ratios[:-1]) / 2)

    def best(
        self, height_px: NDArray[np.int64], width_px: NDArray[np.int64], table: BucketTable
    ) -> tuple[I32, NDArray[np.bool_], NDArray[np.bool_]]:
        """Return each clip's nearest bucket, whether it is large enough, and whether the crop is allowed."""
        height = np.maximum(height_px, 1).astype(np.float64)
        width = np.maximum(width_px, 1).astype(np.float64)
        pick = np.searchsorted(self.edges, np.log(width / height))
        to_height, to_width = self.height[pick], self.width[pick]
        scale = np.maximum(to_height / height, to_width / width)
        visible = (to_height * to_width) / (scale * scale * height * width)
        return self.bucket[pick], (scale <= 1.0) | table.upscale, visible >= 1.0 - table.max_crop


def _nearest_entry(clips: Clips, table: BucketTable) -> NDArray[np.int32]:
    """Return the entry of each clip's kind that needs the least growth in frames and size together."""
    best = np.full(len(clips.uid), -1, dtype=np.int32)
    least = np.full(len(clips.uid), np.inf)
    area = np.maximum(clips.height * clips.width, 1).astype(np.float64)
    frames = np.maximum(clips.num_frames, 1).astype(np.float64)
    for index, entry in enumerate(table.entries):
        growth = np.maximum(entry.needed_frames / frames, 1) * np.maximum(entry.needed_pixels / area, 1)
        takes = (clips.is_image == (entry.num_frames == 1)) & (entry.keep_prob > 0)
        growth = np.where(takes, growth, np.inf)
        better = growth < least
        best[better], least[better] = index, growth[better]
    return best


def targets(table: BucketTable) -> NDArray[np.int64]:
    """Return for every bucket the one that takes its clips at the least loss of tokens, or -1.

    A bucket can take the clips of another of its kind (pictures or videos) if it needs no more frames, height or
    width, so that every clip that fills the one fills the other, and if the crop between the two is within
    `max_crop`. Its entry must not be switched off (a probability of 0). It always comes later in the table, so
    that repeated moves end.
    """
    result = np.full(len(table.buckets), -1, dtype=np.int64)
    for index, bucket in enumerate(table.buckets):
        able = [
            i
            for i, other in enumerate(table.buckets[index + 1 :], index + 1)
            if _used(table.entries[other.entry])
            and _needs_less(bucket, other)
            and kept(bucket, other) >= 1 - table.max_crop
        ]
        if able:
            result[index] = max(able, key=lambda i: _worth(bucket, table.buckets[i]))
    return result


def _used(entry: Entry) -> bool:
    return entry.keep_prob > 0 and entry.keep_length > 0


def kept(bucket: Bucket, other: Bucket) -> float:
    """Return the share of a frame of one bucket that a crop to the other's aspect ratio leaves."""
    ratio = (bucket.shape.width * other.shape.height) / (bucket.shape.height * other.shape.width)
    return min(ratio, 1 / ratio)


def _needs_less(bucket: Bucket, other: Bucket) -> bool:
    a, b = bucket.shape, other.shape
    same_kind = (a.num_frames == 1) == (b.num_frames == 1)
    fits = b.num_frames <= a.num_frames and b.height <= a.height and b.width <= a.width
    return same_kind and fits and other.entry != bucket.entry


def _worth(bucket: Bucket, other: Bucket) -> tuple[float, int]:
    """Rank a target by its tokens that show content of the clip, then by its tokens."""
    return other.tokens * kept(bucket, other), other.tokens
