"""Which frames of a clip are used, and which part of them: pure arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelworks.media.config import DataConfig, ShortClips

# The rate that Open-Sora v1.2 tells the model for a picture; a published model knows it.
IMAGE_FPS = 120.0
# 25 · (30 / 24) may come out just below the whole number that it is.
_EPSILON = 1e-6


def frame_step(fps: NDArray[Any] | float, config: DataConfig) -> NDArray[np.float64]:
    """Source frames from one used frame to the next; never below 1, since frames are not made up."""
    if config.fps is None:
        return np.full(np.shape(fps), float(config.frame_interval))
    return np.maximum(np.asarray(fps, dtype=np.float64) / config.fps, 1.0)


def frames_available(
    num_frames: NDArray[Any], fps: NDArray[Any] | float, config: DataConfig
) -> NDArray[np.int64]:
    """Frames that a clip offers at the configured rate: the most that `frame_indices` finds in it."""
    frames = np.asarray(num_frames, dtype=np.float64)
    return np.where(frames > 0, np.ceil((frames - _EPSILON) / frame_step(fps, config)), 0).astype(np.int64)


def frame_indices(
    num_frames: int, wanted: int, step: float, draw: float, short_clips: ShortClips = "reject"
) -> NDArray[np.int64]:
    """Indices of `wanted` frames that lie `step` apart, begun at a drawn place.

    Args:
        num_frames: Frames in the file, at least one.
        wanted: Frames of the bucket.
        step: Source frames from one used frame to the next.
        draw: In [0, 1), chooses the first frame among all that leave room; 0 starts at the beginning.
        short_clips: What comes after the last frame of a file that is too short: "hold" repeats it, "loop"
            starts over.

    Returns:
        `[wanted]` ascending; of a file that is too short, with "reject" the last ones lie beyond its end.
    """
    span = np.floor(np.arange(wanted) * step + _EPSILON).astype(np.int64)
    room = max(num_frames - int(span[-1]), 1)
    start = min(int(draw * room), room - 1)
    offered = int(np.searchsorted(span, num_frames))
    place = np.arange(wanted)
    if short_clips == "hold":
        place = np.minimum(place, offered - 1)
    elif short_clips == "loop":
        place %= offered
    indices: NDArray[np.int64] = span[place] + start
    return indices


def cover(height: int, width: int, target_height: int, target_width: int) -> tuple[int, int]:
    """Size that a frame is resized to so that it just covers the target."""
    scale = max(target_height / height, target_width / width)
    return max(round(height * scale), target_height), max(round(width * scale), target_width)


def crop_offset(size: int, target: int, draw: float) -> int:
    """Where a crop begins; a draw of 0.5 is the centre."""
    return min(int(draw * (size - target + 1)), size - target)
