"""Times of the frames of a video, by which a frame is found exactly, whatever its rate and container."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reelworks.catalog import probe
from reelworks.catalog.formats import ProbeError
from reelworks.catalog.location import MediaPath


class FrameTimes(NamedTuple):
    """Times of the displayed frames in order, in ticks since the stream's zero."""

    ticks: NDArray[np.int64]  # numbers from 0 if the container has no complete timestamps
    keys: NDArray[np.int64]  # indices of the frames that a decoder can begin with, ascending
    tick_seconds: float
    declared_fps: Fraction | None
    timed: bool  # whether the container has a timestamp for every frame

    @property
    def seconds(self) -> NDArray[np.float64]:
        """Seconds from the first frame to each frame."""
        seconds: NDArray[np.float64] = (self.ticks - self.ticks[0]) * self.tick_seconds
        return seconds

    def end_seconds(self) -> float:
        """Return the end of the last frame, which lasts as long as the one before."""
        seconds = self.seconds
        last = seconds[-1] - seconds[-2] if len(seconds) > 1 else 1 / float(self.declared_fps or 1)
        return float(seconds[-1] + last)


def read(path: MediaPath) -> FrameTimes:
    """Read the frame times of a file, without decoding it; raise `ProbeError` if it has no frames."""
    with probe.video(path) as container:
        return of_stream(container, probe.stream(container))


def of_stream(container: Any, stream: Any) -> FrameTimes:
    """Read all packets of an open file, which tell the time of each frame exactly, for variable rates too."""
    shown = [(p.pts, p.is_keyframe) for p in container.demux(stream) if p.size and not p.is_discard]
    if not shown:
        raise ProbeError("the file has no frames")
    rate = stream.average_rate if stream.average_rate and stream.average_rate > 0 else None
    if any(pts is None for pts, _ in shown):
        ticks = np.arange(len(shown), dtype=np.int64)
        keys = np.flatnonzero([key for _, key in shown])
        return FrameTimes(ticks, keys, float(1 / (rate or 1)), rate, timed=False)
    stamps = np.array([pts for pts, _ in shown], dtype=np.int64)
    order = np.argsort(stamps, kind="stable")
    keys = np.flatnonzero(np.array([key for _, key in shown], dtype=np.bool_)[order])
    return FrameTimes(stamps[order], keys, float(stream.time_base or Fraction(1, 1000)), rate, timed=True)
