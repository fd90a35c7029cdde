"""Measure how much an epoch discards of the clips that it trains: cropped borders, frames not read."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from reelworks.core import blocks
from reelworks.core.arrays import F64, I64, Integers
from reelworks.data.schedule.plan import EpochPlan, Samples
from reelworks.training.recipe.dataset import RecipeData

FILES_NAMED = 10
_ROUNDING = 1e-6  # smaller shares are rounding errors


@dataclass(frozen=True)
class BucketCrop:
    """Mean share of the frame's area that is cropped from the clips of a bucket."""

    name: str
    mean: float


@dataclass(frozen=True)
class CroppedClip:
    """A clip with its size as displayed, its bucket, and the share of the frame's area that is cropped (`lost`)."""

    path: str
    width: int
    height: int
    bucket: str
    lost: float


@dataclass(frozen=True)
class Crop:
    """Shares of the frame's area that are cropped: the mean over all clips, by bucket, and the clips that lose most."""

    mean: float
    by_bucket: list[BucketCrop]
    worst: list[CroppedClip]


@dataclass(frozen=True)
class BucketFrames:
    """Frames of the videos of a bucket: those trained, of those there at the frame rate of reading."""

    name: str
    trained: int
    there: int


@dataclass(frozen=True)
class ClipFrames:
    """Frames of a video: those trained, of those there at the frame rate of reading."""

    path: str
    bucket: str
    trained: int
    there: int


@dataclass(frozen=True)
class VideoFrames:
    """Frames of all videos: those trained, of those there at the frame rate of reading.

    Attributes:
        less_than_half: Number of clips of which less than half of the frames are trained.
        longest: The longest of these.
    """

    trained: int
    there: int
    by_bucket: list[BucketFrames]
    less_than_half: int
    longest: list[ClipFrames]


@dataclass(frozen=True)
class Losses:
    """Parts of clips that an epoch discards. Means and sums count each repeat.

    Attributes:
        short_clips: Number of videos shorter than their bucket.
        below_rate: Number of videos of a constant frame rate lower than `data.fps`, which keep their own.
    """

    crop: Crop
    frames: VideoFrames
    short_clips: int
    below_rate: int


def planned(plan: EpochPlan) -> Samples:
    """Return the clips of a plan with their buckets, each clip and repeat once."""
    return _own(plan).wide()


def _own(plan: EpochPlan) -> Samples:
    first = plan.is_first_use
    own = slice(None) if first.all() else first  # else a copy of millions of clips is saved
    return Samples(plan.uid[own], plan.copy[own], plan.ordinal[own], plan.bucket[own])


def losses(data: RecipeData, plan: EpochPlan) -> Losses:
    """Return how much of its clips an epoch discards."""
    row, bucket = _in_row_order(data, plan)
    with ThreadPoolExecutor(1) as thread:  # numpy computes without Python's lock
        of_frames = thread.submit(frames, data, row, bucket)
        lost = lost_shares(data, row, bucket)
        by_bucket = [BucketCrop(name, total / clips) for name, clips, (total,) in _by_bucket(data, bucket, lost)]
        mean = float(lost.mean()) if len(lost) else 0.0
        crop = Crop(mean, by_bucket, worst(data, row, bucket, lost, FILES_NAMED))
        data.rows.release("height", "width")
        return Losses(crop, *of_frames.result(), below_rate(data, row))


def _in_row_order(data: RecipeData, plan: EpochPlan) -> tuple[Integers, Integers]:
    """Return row and bucket of each clip and repeat by row: columns of millions are read several times as fast in order."""
    entries, bits = _own(plan), len(data.table.buckets).bit_length()
    words = blocks.elementwise(
        lambda ordinal, bucket: (ordinal.astype(np.int64) << bits) | bucket,
        *(entries.ordinal, entries.bucket),
        dtype=np.int64,
    )
    words.sort()
    bucket = blocks.elementwise(lambda word: word & ((1 << bits) - 1), words, dtype=entries.bucket.dtype)
    words >>= bits
    return data.rows_at(words), bucket


def below_rate(data: RecipeData, row: Integers) -> int:
    """Return the number of videos with a frame rate lower than `data.fps`, each counted once."""
    rate, rows = data.spec.data.frame_rate, data.rows
    if rate is None:
        return 0
    # 1 % is the difference between 24 and 23.976 frames per second, and more.
    slower = rows.is_video & ~rows.variable_fps & (rows.fps < 0.99 * rate)
    return int(np.count_nonzero(blocks.mask(row, len(rows)) & slower))


def lost_shares(data: RecipeData, row: Integers, bucket: Integers) -> F64:
    """Return the share of the frame's area that the crop to a bucket cuts away, for each pair of row and bucket."""
    shapes = [bucket.shape for bucket in data.table.buckets]
    heights, widths = (np.array([getattr(s, side) for s in shapes], dtype=np.float64) for side in ("height", "width"))

    def lost(row: Integers, bucket: Integers) -> F64:
        height, width = data.rows.height[row].astype(np.float64), data.rows.width[row].astype(np.float64)
        to_height, to_width = heights[bucket], widths[bucket]
        scale = np.maximum(to_height / height, to_width / width)
        return np.maximum(1 - to_height * to_width / (scale * scale * height * width), 0.0)

    return blocks.elementwise(lost, row, bucket, dtype=np.float64)


def worst(data: RecipeData, row: Integers, bucket: Integers, lost: F64, count: int) -> list[CroppedClip]:
    """Return the clips that lose most to cropping, each once, without those that lose nothing."""
    first = _largest(row, lost, count)
    sizes = data.rows.width[row[first]].tolist(), data.rows.height[row[first]].tolist()
    names = [data.table.buckets[i].name for i in bucket[first].tolist()]
    return list(map(CroppedClip, data.rows.labels(row[first]), *sizes, names, lost[first].tolist()))


def frames(data: RecipeData, row: Integers, bucket: Integers) -> tuple[VideoFrames, int]:
    """Return the frames of videos that are trained, and the number of videos shorter than their bucket."""
    is_video = blocks.indices(~blocks.taken(data.rows.is_image, row))
    row, bucket = blocks.taken(row, is_video), blocks.taken(bucket, is_video)
    of_bucket = np.array([bucket.shape.num_frames for bucket in data.table.buckets], dtype=np.int32)
    available, wanted = blocks.taken(data.frames, row), blocks.taken(of_bucket, bucket)
    trained = np.minimum(wanted, available)
    half = blocks.indices(trained < available / 2)
    longest = half[_largest(row[half], available[half], FILES_NAMED)]
    names = [data.table.buckets[i].name for i in bucket[longest].tolist()]
    counts = trained[longest].tolist(), available[longest].tolist()
    of_videos = VideoFrames(
        trained=int(trained.sum()),
        there=int(available.sum()),
        by_bucket=[BucketFrames(name, *map(int, n)) for name, _, n in _by_bucket(data, bucket, trained, available)],
        less_than_half=_distinct(data, row[half]),
        longest=list(map(ClipFrames, data.rows.labels(row[longest]), names, *counts)),
    )
    return of_videos, _distinct(data, row[available < wanted])


def _distinct(data: RecipeData, row: Integers) -> int:
    """Return the number of different rows."""
    return int(np.count_nonzero(blocks.mask(row, len(data.rows))))


def _by_bucket(data: RecipeData, bucket: Integers, *columns: F64 | Integers) -> Iterator[tuple[str, int, list[float]]]:
    """Yield the name, the clips and the sums of columns of the buckets that have clips."""
    n = len(data.table.buckets)
    clips = blocks.counts(bucket, n).tolist()
    sums = [blocks.sums(bucket, values, n).tolist() for values in columns]
    yield from (
        (data.table.buckets[i].name, count, [total[i] for total in sums]) for i, count in enumerate(clips) if count
    )


def _largest(clip: Integers, value: F64 | Integers, count: int) -> I64:
    """Return the indices of the largest values, descending, one for each clip, without values of about 0."""
    end = count
    while True:  # look further only if repeats of the same clips make it necessary
        order = _descending(value, end)
        _, first = np.unique(clip[order], return_index=True)
        if len(first) >= count or len(order) < end:
            return order[np.sort(first)[:count]]
        end *= 4


def _descending(value: F64 | Integers, count: int) -> I64:
    """Return the indices of the `count` largest values, descending and then by index, without values of about 0."""
    if count < len(value):
        parts = (value[where] for where in blocks.slices(len(value)))
        largest = [np.partition(part, -count)[-count:] if count < len(part) else part for part in parts]
        candidates = np.flatnonzero(value >= np.partition(np.concatenate(largest), -count)[-count])
    else:
        candidates = np.arange(len(value))
    candidates = candidates[value[candidates] > _ROUNDING]
    return np.asarray(candidates[np.argsort(-value[candidates], kind="stable")][:count])
