"""The clips of a run to look at, each with its first frame, caption and word, for pages without other files."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from reelworks.core import results
from reelworks.core.errors import UserError
from reelworks.data.media import decode_pool
from reelworks.data.media.decode import MediaError
from reelworks.data.run.folder import RunFolder
from reelworks.reports import previews
from reelworks.training.coverage.learning import ClipLearning, Learning, Word

MOST_CLIPS = 24
_LONG_PX = 200


@dataclass(frozen=True)
class WallClip:
    """A clip of the wall; `uri` is a picture, empty if the file cannot be read."""

    clip: ClipLearning = field(metadata=results.INLINED)
    caption: str
    uri: str


@dataclass(frozen=True)
class LearningWall:
    """Clips to look at, the worst first, and the counts of all clips by word."""

    step: int
    counts: dict[str, int]
    faults: int
    clips: list[WallClip]


def of_run(run: RunFolder) -> LearningWall | None:
    """Return the clips of a run to look at; None if no checkpoint holds losses of clips."""
    try:
        known = Learning.of_run(run)
    except UserError:
        return None
    places = known.places("worst", [word.label for word in Word if word.is_fault])
    report = known.report(places[:MOST_CLIPS])
    captions, pictures = [""] * len(report.clips), [""] * len(report.clips)
    for found, named, ordinal in known.located(places[:MOST_CLIPS]):
        rows = named.catalog.rows_at(np.sort(ordinal))
        for i, row in zip(found.tolist(), np.searchsorted(np.sort(ordinal), ordinal).tolist(), strict=True):
            captions[i] = rows.caption[row].as_py() or ""
            with suppress(MediaError, OSError):
                request = previews.first_frame(rows, row, _LONG_PX)
                pictures[i] = previews.picture_uri(decode_pool.load(request)[0])
    clips = [WallClip(*each) for each in zip(report.clips, captions, pictures, strict=True)]
    return LearningWall(report.step, report.counts, len(places), clips)
