"""Seek the frames of a video: from which key frames, and whether a decoder then gives those of their times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelworks.data.media.frame_times import FrameTimes
from reelworks.data.media.video import OpenVideo


class WrongTimesError(Exception):
    """Frames come in another order than that of their times, or from another place than was sought."""


def by_time(opened: OpenVideo, ticks: NDArray[np.int64], key: int) -> Iterator[tuple[int, Any]]:
    """Yield frames with their numbers from a key frame on, as long as a decoder gives them at these ticks."""
    number = key
    for frame in opened.frames():
        if frame.pts is not None and frame.pts < ticks[key]:  # of an earlier key frame, or before this one in time
            continue
        if frame.pts != ticks[number]:
            raise WrongTimesError
        yield number, frame
        number += 1
        if number == len(ticks):
            return


def key_frames(runs: Sequence[range], times: FrameTimes, *, interlaced: bool) -> list[tuple[int, int]]:
    """Return the key frames to begin with and the last frame that is needed from each, for ascending runs."""
    found: list[tuple[int, int]] = []
    for run in runs:
        first = max(run.start - 1, 0) if interlaced else run.start  # fields are completed by those of the frame before
        before = times.keys[times.keys <= first]
        key, last = int(before[-1]) if len(before) else 0, run.stop - 1
        if found and key <= found[-1][1]:  # the decoder comes by
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((key, last))
    return found
