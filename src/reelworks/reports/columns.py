"""Columns of numbers of a catalog: their distributions, clips at some percentiles, and what limits there would leave out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from reelworks.core import blocks
from reelworks.core.arrays import F64, I64, Mask
from reelworks.data.buckets import assign, propose
from reelworks.data.buckets.assign import Reason
from reelworks.data.buckets.propose import Proposal
from reelworks.data.buckets.table import EMPTY, BucketTable
from reelworks.data.catalog.query.filter_failures import rounded
from reelworks.data.catalog.store import measured_columns
from reelworks.data.catalog.store.rows import CatalogRows
from reelworks.data.catalog.store.summary import Histogram, histogram
from reelworks.data.loader.dataset import Dataset
from reelworks.data.media.decode_pool import DecodePool
from reelworks.reports import previews

PERCENTILES = (1, 10, 50, 90, 99)
_FILES = 3
_WORKERS = 1
_TIMEOUT_SECONDS = 20.0
_LONG_PX = 160


class _Heading(NamedTuple):
    label: str
    unit: str
    of_videos: bool = False


# Names and units that are shown for columns; any other column has its own name.
HEADINGS = {
    "height": _Heading("height", "pixels"),
    "width": _Heading("width", "pixels"),
    "duration_seconds": _Heading("duration", "seconds, of videos", of_videos=True),
    "fps": _Heading("frame rate", "frames per second, of videos", of_videos=True),
}


def heading(name: str) -> _Heading:
    """Return how a column of numbers is named for people, and its unit."""
    measured = measured_columns.find(name)
    return HEADINGS.get(name, _Heading(name.replace("_", " "), "" if measured is None else measured.unit))


@dataclass(frozen=True)
class BucketLoss:
    """Clips of a bucket that a limit would leave out, with the frames and latent tokens that an epoch trains of them."""

    name: str
    clips: int
    frames: int
    tokens: int


@dataclass(frozen=True)
class Loss:
    """Clips that a limit would leave out, beside those that lack the number.

    Attributes:
        clips: Number of clips.
        hours: Duration of the videos among them.
        frames: Frames that an epoch trains of them.
        tokens: Latent tokens that an epoch trains of them.
        buckets: The same by bucket, without buckets that lose none.
    """

    clips: int
    hours: float
    frames: int
    tokens: int
    buckets: list[BucketLoss]


@dataclass(frozen=True)
class Percentile:
    """A percentile of a column, the clips next to it, and what it would cost as a limit.

    Attributes:
        percentile: Share of the clips with a smaller number, in percent.
        value: The number there.
        files: Clips whose numbers are nearest.
        at_least: Clips that `column >= value` would leave out.
        at_most: Clips that `column <= value` would leave out.
    """

    JSON_KEYS: ClassVar = ("percentile", "value", "files", "at_least", "at_most")

    percentile: int
    value: float
    files: list[str]
    at_least: Loss
    at_most: Loss
    row: int

    @property
    def limits(self) -> list[tuple[str, Loss]]:
        """Limits with few digits, such as ">= 0.41", rounded to the side that takes the clip there, and what each loses."""
        down, up = (f"{rounded(np.array([self.value]), towards)[0]:.6g}" for towards in (np.floor, np.ceil))
        return [(f">= {down}", self.at_least), (f"<= {up}", self.at_most)]


@dataclass(frozen=True)
class ColumnLimits:
    """A column of numbers of a catalog.

    Attributes:
        name: Name of the column, as filters have it.
        heading: Name for people.
        unit: Unit of the numbers, "" if they have none.
        clips: Clips that have the number.
        missing: Clips that lack it, which every limit would leave out.
        histogram: Numbers of clips by classes, with "none" for those that lack the number.
        percentiles: The 1st, 10th, 50th, 90th and 99th percentile.
    """

    name: str
    heading: str
    unit: str
    clips: int
    missing: int
    histogram: Histogram
    percentiles: list[Percentile]


@dataclass(frozen=True)
class Counted:
    """Clips that limits are measured on.

    Attributes:
        rows: Rows of a catalog.
        clip: Which of them count.
        row, bucket: Row and bucket of each use of a clip in an epoch.
    """

    rows: CatalogRows
    clip: Mask
    table: BucketTable
    row: I64
    bucket: I64

    @classmethod
    def of_recipe(cls, data: Dataset) -> Counted:
        """Return the clips that the first epoch of a recipe trains."""
        assignment, row = data.assignment(0)
        trained = np.flatnonzero(assignment.reason == Reason.NONE)
        clip = blocks.mask(row[trained], len(data.rows))
        return cls(data.rows, clip, data.table, row[trained], assignment.bucket[trained].astype(np.int64))

    @classmethod
    def of_rows(cls, rows: CatalogRows, proposal: Proposal) -> Counted:
        """Return the readable clips of a catalog, in proposed buckets."""
        good = np.flatnonzero(rows.readable)
        table = propose.table_of(proposal) if proposal.entries else EMPTY
        bucket = assign.assign(propose.clips_of(rows.take(good)), table, seed=0, epoch=0).bucket
        inside = np.flatnonzero(bucket >= 0)
        return cls(rows, rows.readable, table, good[inside], bucket[inside].astype(np.int64))

    def loss(self, lost: Mask) -> Loss:
        """Return what the epoch loses without some rows, beside those that do not count."""
        clips = lost & self.clip
        number = np.bincount(self.bucket[lost[self.row]], minlength=len(self.table.buckets))
        frames = number * np.array([b.shape.num_frames for b in self.table.buckets], dtype=np.int64)
        tokens = number * self.table.tokens()
        each = zip((b.name for b in self.table.buckets), number.tolist(), frames.tolist(), tokens.tolist(), strict=True)
        return Loss(
            int(clips.sum()),
            float(self.rows.duration_seconds[clips].sum()) / 3600,
            int(frames.sum()),
            int(tokens.sum()),
            [BucketLoss(*one) for one in each if one[1]],
        )


def limitable(rows: CatalogRows) -> list[str]:
    """Return the names of the columns of numbers on which limits have a meaning."""
    return [*(name for name in rows.scores if not measured_columns.is_label(name)), *HEADINGS]


def columns(counted: Counted) -> list[ColumnLimits]:
    """Return the columns of numbers that at least one of the clips has."""
    found = (_column(counted, name, values_of(counted.rows, name)) for name in limitable(counted.rows))
    return [column for column in found if column is not None]


def values_of(rows: CatalogRows, name: str) -> F64:
    """Return a column of numbers, NaN for rows that lack the number."""
    return np.asarray(getattr(rows, name) if name in HEADINGS else rows.scores[name], dtype=np.float64)


def _column(counted: Counted, name: str, values: F64) -> ColumnLimits | None:
    label, unit, of_videos = heading(name)
    among = counted.clip & counted.rows.is_video if of_videos else counted.clip
    has = among & ~np.isnan(values)
    at = np.flatnonzero(has)
    if not len(at):
        return None
    limits = np.percentile(values[at], PERCENTILES, method="inverted_cdf").tolist()
    percentiles = []
    for percentile, value in zip(PERCENTILES, limits, strict=True):
        distance = np.abs(values[at] - value)
        near = np.argpartition(distance, min(_FILES, len(at)) - 1)[:_FILES]
        near = at[near[np.argsort(distance[near], kind="stable")]]
        below, above = (counted.loss(has & mask) for mask in (values < value, values > value))
        percentiles.append(Percentile(percentile, value, counted.rows.labels(near), below, above, int(near[0])))
    missing = int(among.sum()) - len(at)
    return ColumnLimits(name, label, unit, len(at), missing, histogram(values[among]), percentiles)


def thumbnails(rows: CatalogRows, wanted: Iterable[int]) -> dict[int, str]:
    """Return small first frames of clips as data addresses by row; clips that cannot be decoded have none.

    They are decoded in processes that may hang or die.
    """
    chosen = sorted(set(wanted))
    few = rows.take(np.array(chosen, dtype=np.int64))
    pool = DecodePool(_WORKERS, _TIMEOUT_SECONDS)
    try:
        decoding = [pool.submit(previews.first_frame(few, place, _LONG_PX)) for place in range(len(chosen))]
        frames = [future.result() for future in decoding]
    finally:
        pool.close()
    return {
        row: previews.picture_uri(one[0])
        for row, one in zip(chosen, frames, strict=True)
        if isinstance(one, np.ndarray)
    }
