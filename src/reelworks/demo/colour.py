"""Scores of generated demo clips by the colour of their shape.

The pixels that differ most from the border count as the shape, wherever it is and however it moves. Compare a score
with `rotated`: a model that ignores its prompts matches wrong colours as often as the right ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reelworks.demo import scenes

_RING_SHARE = 0.06
_FARTHEST_SHARE = 0.03
_NAMES = tuple(scenes.COLOURS)
_PALETTE_PC = np.array(list(scenes.COLOURS.values()), np.float32)


class Score(NamedTuple):
    """Numbers of clips with the colour of their prompt, and with a permuted colour."""

    right: int
    rotated: int


def clip_colour(frames_THWC: NDArray[Any]) -> str:
    """Return the name of the palette colour of a clip's shape.

    The background is the median per channel of the outer ring (6 % of the short side) of all frames. The 3 % of pixels
    farthest from it in RGB, ties included, each vote for the nearest palette colour.
    """
    if frames_THWC.dtype != np.uint8 or frames_THWC.ndim != 4 or frames_THWC.shape[3] != 3 or not frames_THWC.size:
        raise ValueError(f"frames are {frames_THWC.dtype} {frames_THWC.shape}: give uint8 (frames, height, width, 3)")
    distance_N = _distance(frames_THWC, _ground(frames_THWC))
    count = max(1, round(_FARTHEST_SHARE * len(distance_N)))
    # A sort, since partitioning takes seconds on the many equal distances of plain colours.
    farthest_N = distance_N >= np.sort(distance_N)[-count]
    farthest_NC = frames_THWC.reshape(-1, 3)[farthest_N].astype(np.float32)
    to_colour_NP = np.stack([((farthest_NC - rgb) ** 2) @ np.ones(3, np.float32) for rgb in _PALETTE_PC], axis=1)
    return _NAMES[int(np.bincount(to_colour_NP.argmin(axis=1)).argmax())]


def score(clips: Iterable[tuple[str, NDArray[Any]]]) -> Score:
    """Count the clips that have their prompt's colour, from pairs of that colour and the frames_THWC generated for it.

    `rotated` is the highest count when each expected colour is replaced by the one 1 to 5 positions further in the
    palette, which is close to `right` if the model ignores the prompts.
    """
    pairs = [(_NAMES.index(colour), _NAMES.index(clip_colour(frames))) for colour, frames in clips]
    shifts = np.array([(shown - expected) % len(_NAMES) for expected, shown in pairs], dtype=np.int64)
    counts = np.bincount(shifts, minlength=len(_NAMES))
    return Score(right=int(counts[0]), rotated=int(counts[1:].max()))


def _ground(frames_THWC: NDArray[Any]) -> NDArray[Any]:
    """Return the background colour: median per channel, (3,), of the outer ring of all frames."""
    height, width = frames_THWC.shape[1:3]
    ring = max(1, round(_RING_SHARE * min(height, width)))
    inside_HW = np.zeros((height, width), bool)
    inside_HW[ring:-ring, ring:-ring] = True
    border_NC = frames_THWC[:, ~inside_HW].reshape(-1, 3)
    return np.asarray(np.median(border_NC, axis=0))


def _distance(frames_THWC: NDArray[Any], ground_C: NDArray[Any]) -> NDArray[np.float32]:
    """Return the squared distance of every pixel to the background, flat, by lookup tables of 256 values."""
    squares_CV = ((np.arange(256) - ground_C[:, None]) ** 2).astype(np.float32)
    distance_THW: NDArray[np.float32] = squares_CV[0][frames_THWC[..., 0]]
    for channel in (1, 2):
        distance_THW += squares_CV[channel][frames_THWC[..., channel]]
    return distance_THW.reshape(-1)
