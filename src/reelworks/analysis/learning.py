"""Say in a word what a run has learnt of each clip, from the losses that its newest checkpoint holds.

`words` is a function of the table alone. A clip is compared with its peers, the clips of its bucket, by robust statistics: a
median, and deviations from it on its own side, since losses are skewed. Limits are constants below, with their reasons.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reelworks.analysis.coverage import NamedCatalog
from reelworks.checkpoint import verify
from reelworks.checkpoint.folder import CheckpointFolder
from reelworks.checkpoint.manifest import BadCheckpoint
from reelworks.core import files, results
from reelworks.core.errors import UserError
from reelworks.data import eligibility, segment_record
from reelworks.run import clip_losses, records
from reelworks.run.clip_losses import ClipLosses, ClipLossError
from reelworks.run.folder import RunFolder
from reelworks.run.records import RecordError
from reelworks.schedule.cursor import Aliases

F64 = NDArray[np.float64]

FEWEST_SHOWN = 4  # times trained before losses say more of a clip than of its noise
FEWEST_PEERS = 20  # of a bucket; with fewer, all clips are compared, whose losses are normalised by bucket
FAR = 3.5  # deviations beyond which a value is an outlier (Iglewicz and Hoaglin, 1993)
LEAST_RATIO = 0.1  # and the least difference of the logarithm of a loss, so that a set without spread has no outliers
STILL_FALLING = 0.03  # by which the loss fell lately where it is still falling
_NORMAL = 1.4826  # of a normal distribution, a standard deviation by its median absolute deviation


class Word(IntEnum):
    """What was learnt of a clip, those to look at first."""

    NOT_LEARNT = 0
    WITHOUT_EFFECT = 1
    MEMORISED = 2
    STILL_LEARNING = 3
    LEARNT = 4
    TOO_EARLY = 5

    @property
    def label(self) -> str:
        """The word in reports."""
        return "caption_without_effect" if self == Word.WITHOUT_EFFECT else self.name.lower()

    @property
    def is_fault(self) -> bool:
        """Whether the clip should be looked at."""
        return self <= Word.MEMORISED


@dataclass(frozen=True)
class ClipWords:
    """What was learnt of each clip, in arrays with an element for each clip of a table.

    Attributes:
        word: A `Word`.
        outlier: Deviations of its loss from the median of its peers.
        trend: Logarithm of the ratio of its loss now to that when it was first trained.
        rank: Share of its peers with a lower loss.
    """

    word: NDArray[np.int8]
    outlier: F64
    trend: F64
    rank: F64


def words(table: ClipLosses) -> ClipWords:
    """Return what was learnt of each clip of a table; a pure function of it."""
    peers = _peers(table)
    known = table.shown >= FEWEST_SHOWN
    outlier, rank, effect = (np.zeros(len(table)) for _ in range(3))
    for group in np.unique(peers[known]).tolist():
        where = np.flatnonzero(known & (peers == group))
        outlier[where], rank[where] = deviations(table.recent[where], LEAST_RATIO), _ranks(table.recent[where])
    measured = known & (table.measured > 0) & ~table.held_out
    where = np.flatnonzero(measured)
    effect[where] = deviations(table.gain[where], LEAST_RATIO)
    drop = table.recent - table.first
    word = np.full(len(table), Word.LEARNT, np.int8)
    word[_falls(table)] = Word.STILL_LEARNING
    word[(outlier < -FAR)] = Word.MEMORISED
    word[measured & (effect < -FAR) & (table.gain <= 0)] = Word.WITHOUT_EFFECT
    word[(outlier > FAR)] = Word.NOT_LEARNT
    word[~known] = Word.TOO_EARLY
    return ClipWords(word, outlier, drop + _course(table), rank)


def _peers(table: ClipLosses) -> NDArray[np.int64]:
    """Return the group of clips that each is compared with: its bucket's, or -1 for all of small ones together."""
    bucket = table.bucket.astype(np.int64)
    count = np.bincount(bucket[table.shown >= FEWEST_SHOWN], minlength=int(bucket.max(initial=0)) + 1)
    return np.where(count[bucket] >= FEWEST_PEERS, bucket, -1)


def deviations(values: NDArray[np.floating], least: float) -> F64:
    """Return by how many deviations values lie above their median, or below it if negative.

    The deviation is that of the values on the same side, and at least such that `least` is `FAR` of them.
    """
    values = np.asarray(values, np.float64)
    if not len(values):
        return values
    middle = np.median(values)
    apart = values - middle
    sides = [np.median(np.abs(apart[side])) for side in (apart >= 0, apart <= 0)]
    scale = np.where(apart > 0, *sides)
    return np.asarray(apart / np.maximum(_NORMAL * scale, least / FAR))


def _ranks(values: NDArray[np.floating]) -> F64:
    """Return the share of the others with a lower value."""
    return np.searchsorted(np.sort(values), values, side="left") / max(len(values) - 1, 1)


def _falls(table: ClipLosses) -> NDArray[np.bool_]:
    """Return which clips' losses still fall: their own beside the usual one, and the usual one with the course of the run."""
    course = table.about.course
    last = [value for step, value in course if 2 * step >= table.about.step]
    usual = float(np.log(last[-1] / last[0])) if len(last) > 1 else 0.0
    return np.asarray(table.recent - table.longer + usual < -STILL_FALLING)


def _course(table: ClipLosses) -> float:
    """Return the logarithm of the ratio of the usual loss now to that at the start."""
    course = table.about.course
    return float(np.log(course[-1][1] / course[0][1])) if course else 0.0
