"""Frame rate and duration from the timestamps of all frames."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np


class Timing(NamedTuple):
    """Average frames per second, length in seconds, and whether frames are unevenly spaced."""

    fps: float
    duration_seconds: float
    variable_fps: bool


def measure(
    num_frames: int,
    timestamps: Sequence[int],
    last_duration: int,
    tick_seconds: Fraction,
    declared_fps: Fraction | None,
) -> Timing:
    """Measure a stream's timing.

    Args:
        num_frames: Frames in the stream, at least one.
        timestamps: One for each frame in ticks, in any order; of another length where the container
            has none, and then the declared rate is all there is.
        last_duration: Ticks for which the last frame is shown; 0 if unknown.
        tick_seconds: Length of a tick.
        declared_fps: Rate that the container states.
    """
    declared = float(declared_fps) if declared_fps and declared_fps > 0 else 0.0
    ticks = np.sort(np.asarray(timestamps, dtype=np.int64))
    if len(ticks) != num_frames or num_frames == 1 or ticks[0] == ticks[-1]:
        fps = declared or (float(1 / (last_duration * tick_seconds)) if last_duration > 0 else 0.0)
        return Timing(fps, num_frames / fps if fps else 0.0, False)
    steps, span = np.diff(ticks), int(ticks[-1] - ticks[0])
    if _uneven(steps):
        usual = int(np.sort(steps)[(len(steps) - 1) // 2])
        duration = float((span + (last_duration or usual)) * tick_seconds)
        return Timing(num_frames / duration, duration, True)
    measured = (num_frames - 1) / float(span * tick_seconds)
    # Timestamps are rounded to ticks, so over a short span the declared rate is the better number.
    rounding = max(0.01, 1 / span)
    fps = declared if abs(declared / measured - 1) <= rounding else measured
    return Timing(fps, num_frames / fps, False)


def _uneven(steps: np.ndarray[tuple[int], np.dtype[np.int64]]) -> bool:
    """Tell real changes of pace from rounding: milliseconds show 30 fps as steps of 33 and 34."""
    spread = int(steps.max() - steps.min())
    rounding = 1 if steps.min() >= 4 else 0  # with ticks as coarse as frames, one tick is a dropped frame
    return spread > max(rounding, 0.05 * float(np.median(steps)))
