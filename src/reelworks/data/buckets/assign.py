"""Assignment of each clip to a bucket, or to a reason from a closed list; vectorised over a catalog.

A clip tries the entries by pixels and then by frames, descending, and takes the first that it fills and
whose `keep_prob` its random draw passes. Pictures use entries of one frame, videos all others. If the table
extends short videos, one that is too short for every entry whose size it fills takes the shortest of these.

In a table of Open-Sora, a clip with at least 0.8 of a resolution's pixels tries the lengths that it has, longest
first, until one keeps it; it then stays at this resolution or moves on to the next lower one (where it tries all
lengths again). Each decision about a clip has its own random draw.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from reelworks.core import blocks, hash_rng
from reelworks.core.arrays import F64, I32, I64, U64, Integers, Mask
from reelworks.core.hash_rng import Purpose
from reelworks.data.buckets.entry import Draws, Entry
from reelworks.data.buckets.families import ROUNDING
from reelworks.data.buckets.opensora.ratios import Resolution
from reelworks.data.buckets.table import Bucket, BucketTable

_RESOLUTION, _LENGTH = 1, 2  # decisions about a clip in a table of Open-Sora


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
    HDR = 11
    INTERLACED = 12
    NO_SOUND = 13
    SOUND_TIMING = 14
    DUPLICATE = 15
    DUPLICATE_TURN = 16

    @property
    def label(self) -> str:
        """The name in reports."""
        return self.name.lower()

    @property
    def is_planned(self) -> bool:
        """Whether a clip without fault waits for validation or for another epoch."""
        return self in (Reason.HELD_OUT, Reason.NOT_DRAWN, Reason.DUPLICATE_TURN)

    @property
    def is_chosen(self) -> bool:
        """Whether the recipe leaves such clips out on purpose: nothing about them has to be repaired."""
        return self in (Reason.IN_EXCLUDE_FILE, Reason.FILTERED, Reason.HDR, Reason.INTERLACED, Reason.DUPLICATE)

    @property
    def is_duplicate(self) -> bool:
        """Whether another clip of a group of near-duplicates stands for such clips."""
        return self in (Reason.DUPLICATE, Reason.DUPLICATE_TURN)


@dataclass(frozen=True)
class Clips:
    """Clips to be assigned, as arrays of equal length."""

    uid: U64
    copy: Integers  # index of the repeat, from 0
    num_frames: Integers  # frames after applying the frame interval; 1 for a picture
    # height, width: size in pixels, as displayed
    height: I64
    width: I64
    is_image: Mask
    excluded: NDArray[np.int8]  # `Reason` to exclude the clip whatever its shape, or `Reason.NONE`
    held_out: Mask  # whether the clip is reserved for validation
    # choice: index of the row of `allowed` that tells which entries a clip may take, -1 for any; None if all may take any
    choice: I64 | None = None
    # allowed: `[choices, entries]`, 2, or 1 for an entry that another length of the clip may take
    allowed: NDArray[np.int8] | None = None

    @classmethod
    def unrestricted(cls, uid: U64, num_frames: I64, height: I64, width: I64, is_image: Mask) -> Clips:
        """Return clips without repeats, of which none is excluded or held out."""
        copy, excluded = np.zeros(len(uid), dtype=np.int64), np.zeros(len(uid), dtype=np.int8)
        return cls(uid, copy, num_frames, height, width, is_image, excluded, held_out=excluded > 0)

    def take(self, where: I64 | slice) -> Clips:
        """Return the clips at these indices."""
        taken = {name: column[where] for name, column in vars(self).items() if name != "allowed" and column is not None}
        return Clips(**taken, allowed=self.allowed)

    def may_take(self, where: I64, entry: int, *, at_any_length: bool = False) -> Mask:
        """Return which of the clips at these indices may take an entry, or another use of the clip at the same resolution."""
        if self.choice is None or self.allowed is None:
            return np.ones(len(where), dtype=np.bool_)
        choice = self.choice[where]
        return np.asarray((choice < 0) | (self.allowed[choice, entry] > (0 if at_any_length else 1)))


@dataclass(frozen=True)
class Assignment:
    """Result of the assignment, with one element for each clip, in integers as narrow as they can be."""

    bucket: Integers  # index into the table's buckets, or -1; held-out clips have a bucket too
    reason: NDArray[np.int8]  # `Reason` why the epoch does not train the clip, or `Reason.NONE`
    # For clips that fit no entry, the entry that they miss by the least; for duplicates, the row of the clip that stands for
    # them; else -1.
    nearest: Integers


def held_out(seed: int, group: U64, share: float) -> Mask:
    """Return which groups are held out for validation, chosen by hash, the same in every epoch and world size."""
    state = hash_rng.hash64(seed, Purpose.HOLD_OUT)
    return blocks.elementwise(lambda g: hash_rng.bernoulli(hash_rng.extend(state, g), share), group, dtype=np.bool_)


def assign(clips: Clips, table: BucketTable, *, seed: int, epoch: int) -> Assignment:
    """Assign every clip to a bucket or a reason for one epoch.

    Held-out clips are assigned without a random draw (an entry of `keep_prob` 0 still takes none), so that
    validation uses the same shapes in every epoch.
    """
    n = len(clips.uid)
    sizes: list[_Sizes] = [
        (_ComputedSizes if entry.named is None else _NamedSizes).of_entry(table, i)
        for i, entry in enumerate(table.entries)
    ]
    bucket, nearest = (np.full(n, -1, blocks.kind_of(len(each))) for each in (table.buckets, table.entries))
    result = Assignment(bucket, clips.excluded.astype(np.int8), nearest)

    def assign_block(where: slice) -> None:
        block = clips.take(where)
        state = hash_rng.hash64(seed, epoch, block.uid, block.copy, Purpose.KEEP)
        bucket, reason, nearest = result.bucket[where], result.reason[where], result.nearest[where]
        (_take if table.draws is Draws.ONE else _take_opensora)(block, table, sizes, state, bucket)
        if table.extends_short:
            block = _take_short(block, table, sizes, state, bucket)
        lost = np.flatnonzero((reason == Reason.NONE) & (bucket < 0))
        reason[(bucket >= 0) & block.held_out] = Reason.HELD_OUT
        reason[lost], nearest[lost] = _explain(block.take(lost), table, sizes)

    blocks.for_each(n, assign_block)
    return result


def _by_kind(clips: Clips, table: BucketTable) -> Iterator[tuple[I64, list[tuple[int, Entry]]]]:
    """Yield the pictures to assign with the numbered entries of one frame, then the videos with all others."""
    for is_image in (True, False):
        entries = [(i, e) for i, e in enumerate(table.entries) if (e.num_frames == 1) == is_image]
        yield np.flatnonzero((clips.excluded == Reason.NONE) & (clips.is_image == is_image)), entries


def _take(clips: Clips, table: BucketTable, sizes: Sequence[_Sizes], state: U64, bucket: I32) -> None:
    """Set the buckets of clips; each entry takes from those that the ones before it have left."""
    for left, entries in _by_kind(clips, table):
        for index, entry in entries:
            open_ = left[(clips.num_frames[left] >= entry.num_frames) & clips.may_take(left, index)]
            if entry.keep_prob < 1:
                drawn = hash_rng.bernoulli(hash_rng.extend(state[open_], *entry.hash_words), entry.keep_prob)
                # An entry that training never uses is not used for validation either.
                open_ = open_[drawn | (clips.held_out[open_] & (entry.keep_prob > 0))]
            choice, large_enough, shape_fits = sizes[index].best(clips.height[open_], clips.width[open_], table)
            fits = large_enough & shape_fits
            bucket[open_[fits]] = choice[fits]
            left = left[bucket[left] < 0]


def _take_opensora(clips: Clips, table: BucketTable, sizes: Sequence[_Sizes], state: U64, bucket: I32) -> None:
    """Set the buckets of clips by the rules of Open-Sora, resolution by resolution, and length by length in each."""
    by_resolution = table.draws is Draws.RESOLUTION_FIRST
    first, second = (_RESOLUTION, _LENGTH) if by_resolution else (_LENGTH, _RESOLUTION)
    for left, entries in _by_kind(clips, table):
        pixels = clips.height[left] * clips.width[left]
        for _, group in itertools.groupby(entries, key=lambda pair: pair[1].resolution):
            lengths = list(group)
            large = left[pixels >= lengths[0][1].needed_pixels]
            frames, trying = clips.num_frames[large], np.ones(len(large), dtype=np.bool_)
            for index, entry in lengths:
                at = np.flatnonzero(trying & (frames >= entry.needed_frames))
                passed = at[_stays(clips, entry, large[at], state, first)]
                stays = _stays(clips, entry, large[passed], state, second)
                taken = large[passed[stays]]
                bucket[taken], _, _ = sizes[index].best(clips.height[taken], clips.width[taken], table)
                if by_resolution:  # a clip that leaves the resolution tries no shorter length of it
                    trying[at] = False
                    trying[passed[~stays]] = True
                else:  # nor does one that stays at a length, whether it stays at the resolution or not
                    trying[passed] = False
            open_ = bucket[left] < 0
            left, pixels = left[open_], pixels[open_]


def _stays(clips: Clips, entry: Entry, where: I64, state: U64, decision: int) -> Mask:
    """Draw which clips stay; held-out clips stay if training clips may, so that validation never varies."""
    chance = entry.keep_prob if decision == _RESOLUTION else entry.keep_length
    if chance in (0.0, 1.0):
        return np.full(len(where), chance == 1.0)
    word = hash_rng.hash_int("opensora", entry.resolution, entry.num_frames, decision)
    return hash_rng.bernoulli(hash_rng.extend(state[where], word), chance) | clips.held_out[where]


def _take_short(clips: Clips, table: BucketTable, sizes: Sequence[_Sizes], state: U64, bucket: I32) -> Clips:
    """Assign videos that are too short for every entry whose size they fill to the shortest of these.

    Returns:
        The clips, with these videos as long as any entry needs, so that `_explain` does not call them too short.
    """
    at = np.flatnonzero((clips.excluded == Reason.NONE) & ~clips.is_image & (bucket < 0))
    shortest = np.full(len(at), -1, dtype=np.int64)
    choice = np.full(len(at), -1, dtype=np.int32)
    short, is_own = np.ones((2, len(at)), dtype=np.bool_)
    videos = [i for i, entry in enumerate(table.entries) if entry.is_used and entry.num_frames > 1]
    for index in sorted(videos, key=lambda i: table.entries[i].num_frames):
        pick, large_enough, shape_fits = sizes[index].best(clips.height[at], clips.width[at], table)
        fits = large_enough & shape_fits & clips.may_take(at, index, at_any_length=True)
        short &= ~fits | (clips.num_frames[at] < table.entries[index].needed_frames)
        first = fits & (shortest < 0)
        shortest[first], choice[first], is_own[first] = index, pick[first], clips.may_take(at[first], index)
    short &= is_own  # else the use of the shortest length takes the clip
    num_frames = clips.num_frames.copy()
    num_frames[at[short]] = max((e.needed_frames for e in table.entries), default=1)
    for index in videos:
        mine = np.flatnonzero(short & (shortest == index))
        entry, where = table.entries[index], at[mine]
        drawn = hash_rng.bernoulli(hash_rng.extend(state[where], *entry.hash_words), entry.keep_prob)
        taken = drawn | clips.held_out[where]
        bucket[where[taken]] = choice[mine[taken]]
    return replace(clips, num_frames=num_frames)


def _explain(clips: Clips, table: BucketTable, sizes: Sequence[_Sizes]) -> tuple[NDArray[np.int8], I32]:
    """Return the reason of each clip that no entry took, and the nearest entry of those that fit none.

    An entry for which no epoch draws a clip counts as none.
    """
    n = len(clips.uid)
    short, small = np.ones(n, dtype=np.bool_), np.ones(n, dtype=np.bool_)
    fits_any, kind_known = np.zeros(n, dtype=np.bool_), np.zeros(n, dtype=np.bool_)
    for index, entry in ((i, entry) for i, entry in enumerate(table.entries) if entry.is_used):
        right_kind = (clips.is_image == (entry.num_frames == 1)) & clips.may_take(np.arange(n), index)
        kind_known |= right_kind
        at = np.flatnonzero(right_kind & (clips.num_frames >= entry.needed_frames))
        large_enough, shape_fits = sizes[index].fit(clips.height[at], clips.width[at], table)
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
class _ComputedSizes:
    """Sizes of an entry by width / height, ascending; `edges` lie half way between their log ratios."""

    bucket: I32
    height: F64
    width: F64
    edges: F64

    @classmethod
    def of_entry(cls, table: BucketTable, entry: int) -> _ComputedSizes:
        bucket = np.array(table.of_entry(entry), dtype=np.int32)
        height = np.array([table.buckets[i].shape.height for i in bucket], dtype=np.float64)
        width = np.array([table.buckets[i].shape.width for i in bucket], dtype=np.float64)
        order = np.argsort(np.log(width / height), kind="stable")
        ratios = np.log(width / height)[order]
        return cls(bucket[order], height[order], width[order], (ratios[1:] + ratios[:-1]) / 2)

    def best(self, height_px: I64, width_px: I64, table: BucketTable) -> tuple[I32, Mask, Mask]:
        """Return each clip's nearest bucket, whether it is large enough, and whether the crop is allowed."""
        pick = np.searchsorted(self.edges, np.log(np.maximum(width_px, 1) / np.maximum(height_px, 1)))
        visible, scale = _visible(height_px, width_px, self.height[pick], self.width[pick])
        return self.bucket[pick], (scale <= 1.0) | table.upscale, visible >= 1.0 - table.max_crop - ROUNDING

    def fit(self, height_px: I64, width_px: I64, table: BucketTable) -> tuple[Mask, Mask]:
        """Return for each clip whether it is large enough, and whether the crop is allowed."""
        return self.best(height_px, width_px, table)[1:]


@dataclass(frozen=True)
class _NamedSizes:
    """Sizes of an entry of a table of Open-Sora, which allows any crop."""

    resolution: Resolution
    first_bucket: int
    needed_pixels: float

    @classmethod
    def of_entry(cls, table: BucketTable, entry: int) -> _NamedSizes:
        named = table.entries[entry].named
        assert named is not None
        return cls(named, next(iter(table.of_entry(entry)), -1), table.entries[entry].needed_pixels)

    def best(self, height_px: I64, width_px: I64, table: BucketTable) -> tuple[I32, Mask, Mask]:
        pick = self.resolution.nearest(np.maximum(height_px, 1), np.maximum(width_px, 1))
        return (self.first_bucket + pick).astype(np.int32), *self.fit(height_px, width_px, table)

    def fit(self, height_px: I64, width_px: I64, _table: BucketTable) -> tuple[Mask, Mask]:
        return height_px * width_px >= self.needed_pixels, np.ones(len(height_px), dtype=np.bool_)


_Sizes = _ComputedSizes | _NamedSizes


def _nearest_entry(clips: Clips, table: BucketTable) -> I32:
    """Return the entry of each clip's kind that needs the least growth in frames and size together."""
    result = np.full(len(clips.uid), -1, dtype=np.int32)
    for at, entries in _by_kind(clips, table):
        best, least = np.full(len(at), -1, dtype=np.int32), np.full(len(at), np.inf)
        area = np.maximum(clips.height[at] * clips.width[at], 1).astype(np.float64)
        frames = np.maximum(clips.num_frames[at], 1).astype(np.float64)
        for index, entry in entries:
            if entry.is_used:
                growth = np.maximum(entry.needed_frames / frames, 1) * np.maximum(entry.needed_pixels / area, 1)
                better = (growth < least) & clips.may_take(at, index)
                best[better], least[better] = index, growth[better]
        result[at] = best
    return result


def targets(table: BucketTable) -> I64:
    """Return for every bucket the one that takes its clips at the least loss of tokens, or -1.

    A bucket can take the clips of another of its kind (pictures or videos) if it needs no more frames, height or
    width, so that every clip that fills the one fills the other, and if the crop between the two is within
    `max_crop`. Its entry must not be switched off (a probability of 0). It always comes later in the table, so
    that repeated moves end.
    """
    result = np.full(len(table.buckets), -1, dtype=np.int64)
    for index, bucket in enumerate(table.buckets):
        a, worth = bucket.shape, dict[int, tuple[float, int]]()
        for i, other in enumerate(table.buckets[index + 1 :], index + 1):
            b, entry = other.shape, table.entries[other.entry]
            same_kind = (a.num_frames == 1) == (b.num_frames == 1) and other.entry != bucket.entry
            fits = b.num_frames <= a.num_frames and b.height <= a.height and b.width <= a.width
            if entry.is_used and same_kind and fits and (left := kept(bucket, other)) >= 1 - table.max_crop - ROUNDING:
                worth[i] = other.tokens * left, other.tokens  # tokens that show content of the clip, then all
        if worth:
            result[index] = max(worth, key=worth.__getitem__)
    return result


def may_take_merged(clips: Clips, where: I64, bucket: I64, table: BucketTable) -> Mask:
    """Return which of the clips at these indices may be moved to a bucket: within `max_crop`, and by no choice of their own."""
    is_free = np.ones(len(where), dtype=np.bool_) if clips.choice is None else clips.choice[where] < 0
    if table.draws is not Draws.ONE:
        return is_free
    to_height, to_width = np.array([(b.shape.height, b.shape.width) for b in table.buckets], dtype=np.float64)[bucket].T
    visible, _ = _visible(clips.height[where], clips.width[where], to_height, to_width)
    return is_free & (visible >= 1.0 - table.max_crop - ROUNDING)


def _visible(height: I64, width: I64, to_height: F64, to_width: F64) -> tuple[F64, F64]:
    """Return the share of a clip that a bucket's crop leaves, and how much larger than the clip its picture is."""
    h, w = (np.maximum(side, 1).astype(np.float64) for side in (height, width))
    scale = np.maximum(to_height / h, to_width / w)
    return (to_height * to_width) / (scale * scale * h * w), scale


def kept(bucket: Bucket, other: Bucket) -> float:
    """Return the share of a frame of one bucket that a crop to the other's aspect ratio leaves."""
    ratio = (bucket.shape.width * other.shape.height) / (bucket.shape.height * other.shape.width)
    return min(ratio, 1 / ratio)
