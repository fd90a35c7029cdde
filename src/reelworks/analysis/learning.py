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
