"""Clip → bucket, or a reason from a closed list; vectorised over the whole catalog.

A clip tries the entries by pixels and then by frames, descending, and takes the first that it fills and
whose `keep_prob` its own draw passes. Pictures use entries of one frame, videos all the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from reelworks.buckets.table import BucketTable
from reelworks.core import draws
from reelworks.core.draws import Purpose


class Reason(IntEnum):
    """Why a clip is not in an epoch. `NONE` means that it is."""

    NONE = 0
    UNREADABLE = 1
    QUARANTINED = 2
    NO_CAPTION = 3
    FILTERED = 4
    TOO_SHORT = 5
    TOO_SMALL = 6
    NO_BUCKET = 7
    HELD_OUT = 8
    NOT_DRAWN = 9

    @property
    def label(self) -> str:
        """The name as reports print it."""
        return self.name.lower()


@dataclass(frozen=True)
class Clips:
    """What assignment needs of each clip, as arrays of one length.

    Attributes:
        uid: Identity of the clip.
        copy: Which repeat of the clip this is, from 0.
        num_frames: Frames there after the frame interval; 1 for a picture.
        height: Pixels as displayed.
        width: Pixels as displayed.
        is_image: True for pictures.
        excluded: A reason that is known before shapes are looked at, or `Reason.NONE`.
        held_out: True for clips kept for validation.
    """

    uid: NDArray[np.uint64]
    copy: NDArray[np.int64]
    num_frames: NDArray[np.int64]
    height: NDArray[np.int64]
    width: NDArray[np.int64]
    is_image: NDArray[np.bool_]
    excluded: NDArray[np.int8]
    held_out: NDArray[np.bool_]


@dataclass(frozen=True)
class Assignment:
    """Result for every clip.

    Attributes:
        bucket: Index into the table's buckets, -1 where there is none. Held-out clips keep theirs.
        reason: `Reason` of every clip that the epoch does not train.
        nearest: For clips that fit nowhere, the entry that would ask least of them; else -1.
    """

    bucket: NDArray[np.int32]
    reason: NDArray[np.int8]
    nearest: NDArray[np.int32]


def held_out(seed: int, group: NDArray[np.uint64], share: float) -> NDArray[np.bool_]:
    """Choose a share of groups for validation by hash, the same for every world size and epoch."""
    return draws.passes(draws.hash64(seed, Purpose.HOLD_OUT, group), share)


def assign(clips: Clips, table: BucketTable, *, seed: int, epoch: int) -> Assignment:
    """Assign every clip for one epoch.

    Held-out clips are assigned without a draw (an entry of `keep_prob` 0 still takes none), so that validation sees the same shapes in every epoch.
    """
    n = len(clips.uid)
    bucket = np.full(n, -1, dtype=np.int32)
    fits_any = np.zeros(n, dtype=np.bool_)
    open_ = clips.excluded == Reason.NONE
    short = np.ones(n, dtype=np.bool_)
    small = np.ones(n, dtype=np.bool_)
    for index, entry in enumerate(table.entries):
        right_kind = clips.is_image == (entry.num_frames == 1)
        long_enough = right_kind & (clips.num_frames >= entry.num_frames)
        choice, large_enough, shape_fits = _best_size(clips, table, index)
        fits = open_ & long_enough & large_enough & shape_fits
        draw = draws.hash64(seed, epoch, clips.uid, clips.copy, Purpose.KEEP, *entry.draw_words)
        # An entry that training never uses is none for validation either.
        drawn = draws.passes(draw, entry.keep_prob) | (clips.held_out & (entry.keep_prob > 0))
        take = fits & drawn & (bucket < 0)
        bucket[take] = choice[take]
        fits_any |= fits
        short &= ~long_enough
        small &= ~(long_enough & large_enough)
    reason = clips.excluded.astype(np.int8, copy=True)
    lost = open_ & (bucket < 0)
    video_entries = any(entry.num_frames > 1 for entry in table.entries)
    image_entries = any(entry.num_frames == 1 for entry in table.entries)
    kind_known = np.where(clips.is_image, image_entries, video_entries)
    reason[lost] = Reason.NO_BUCKET
    reason[lost & kind_known & small] = Reason.TOO_SMALL
    reason[lost & kind_known & short] = Reason.TOO_SHORT
    reason[lost & fits_any] = Reason.NOT_DRAWN
    reason[open_ & (bucket >= 0) & clips.held_out] = Reason.HELD_OUT
    nearest = np.where(lost & ~fits_any, _nearest_entry(clips, table), -1).astype(np.int32)
    return Assignment(bucket, reason, nearest)


def _best_size(
    clips: Clips, table: BucketTable, entry: int
) -> tuple[NDArray[np.int32], NDArray[np.bool_], NDArray[np.bool_]]:
    """Nearest aspect ratio of an entry for every clip: bucket index, size reached, crop bearable."""
    indices = np.array(table.of_entry(entry), dtype=np.int32)
    heights = np.array([table.buckets[i].shape.height for i in indices], dtype=np.float64)
    widths = np.array([table.buckets[i].shape.width for i in indices], dtype=np.float64)
    height = np.maximum(clips.height, 1).astype(np.float64)
    width = np.maximum(clips.width, 1).astype(np.float64)
    log_ratio = np.log(width / height)
    order = np.argsort(np.log(widths / heights), kind="stable")
    sorted_ratios = np.log(widths / heights)[order]
    edges = (sorted_ratios[1:] + sorted_ratios[:-1]) / 2
    pick = order[np.searchsorted(edges, log_ratio)]
    scale = np.maximum(heights[pick] / height, widths[pick] / width)
    large_enough = (scale <= 1.0) | table.upscale
    kept = (heights[pick] * widths[pick]) / (scale * scale * height * width)
    return indices[pick], large_enough, kept >= 1.0 - table.max_crop


def _nearest_entry(clips: Clips, table: BucketTable) -> NDArray[np.int32]:
    """The entry of the clip's kind that asks for the least growth in frames and size together."""
    best = np.full(len(clips.uid), -1, dtype=np.int32)
    least = np.full(len(clips.uid), np.inf)
    area = np.maximum(clips.height * clips.width, 1).astype(np.float64)
    frames = np.maximum(clips.num_frames, 1).astype(np.float64)
    for index, entry in enumerate(table.entries):
        growth = np.maximum(entry.num_frames / frames, 1) * np.maximum(entry.pixels / area, 1)
        growth = np.where(clips.is_image == (entry.num_frames == 1), growth, np.inf)
        better = growth < least
        best[better], least[better] = index, growth[better]
    return best
