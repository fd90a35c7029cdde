"""Judge a clip of the demo by its frames alone: the colour, shape and direction of its subject, and its background.

Nothing here knows how a clip was made. Where a clip shows no shape, or none of those of the footage, the answer is
None: a blurred block is not called a square.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from reelworks.core.arrays import Mask
from reelworks.demo import scenes
from reelworks.demo.scenes import Subject

_RING_SHARE = 0.06  # of the short side: the border, which shows the background
_FARTHEST_SHARE = 0.03  # of the pixels, which show the subject
_LEAST_CONTRAST = 40.0  # between subject and background, in RGB of 0 to 255
_COLOURS = {name: np.array(rgb, np.float64) for name, rgb in scenes.COLOURS.items()}
_BACKGROUNDS = {name: np.array(rgb, np.float64) for name, rgb in scenes.BACKGROUNDS.items()}

_CELLS = 24  # side of the square to which a mask's box is scaled
_LEAST_SIDE = 6  # of a box in pixels, below which shapes cannot be told apart
_LEAST_OVERLAP, _LEAST_LEAD = 0.78, 0.04  # intersection over union with the best shape, and its lead over the next
_LEAST_FRAMES = 0.75  # share of the frames that show one shape

_LEAST_PATH = 0.15  # of the short side
_LEAST_EXPLAINED = 0.8  # share of the centres' variance that a steady motion explains


class Verdict(NamedTuple):
    """Words for a clip; None where it shows none of those that captions have."""

    colour: str | None
    shape: str | None
    direction: str | None
    background: str | None

    def agrees(self, subject: Subject) -> dict[str, bool]:
        """Return which of the four words of a subject the clip shows."""
        return {word: getattr(subject, word) == shown for word, shown in self._asdict().items()}


def judge(frames_THWC: NDArray[Any]) -> Verdict:
    """Judge a clip of uint8 RGB frames.

    The background is the median of the outer ring of all frames, the subject the median of the 3 % of pixels farthest
    from it. Pixels nearer to the subject than to the background are its mask. Its shape is that of the circle, square
    and triangle with which the mask, scaled to its box, overlaps most, in three of four frames; its direction that of a
    straight line through the centres of the masks.
    """
    if frames_THWC.dtype != np.uint8 or frames_THWC.ndim != 4 or frames_THWC.shape[3] != 3 or not frames_THWC.size:
        raise ValueError(f"frames are {frames_THWC.dtype} {frames_THWC.shape}: give uint8 (frames, height, width, 3)")
    pixels_THWC = frames_THWC.astype(np.float64)
    ground_C = _ground(pixels_THWC)
    background = _nearest(ground_C, _BACKGROUNDS)
    distance_THW = np.linalg.norm(pixels_THWC - ground_C, axis=-1)
    count = max(1, round(_FARTHEST_SHARE * distance_THW.size))
    # A sort, since partitioning takes seconds on the many equal distances of plain colours.
    farthest_THW = distance_THW >= np.sort(distance_THW, axis=None)[-count]
    subject_C = np.median(pixels_THWC[farthest_THW], axis=0)
    contrast = float(np.linalg.norm(subject_C - ground_C))
    if contrast < _LEAST_CONTRAST:
        return Verdict(None, None, None, background)
    along_C = (subject_C - ground_C) / contrast**2
    masks_THW: Mask = (pixels_THWC - ground_C) @ along_C > 0.5
    return Verdict(_nearest(subject_C, _COLOURS), _shape(masks_THW), _direction(masks_THW), background)


def _ground(pixels_THWC: NDArray[Any]) -> NDArray[Any]:
    height, width = pixels_THWC.shape[1:3]
    ring = max(1, round(_RING_SHARE * min(height, width)))
    inside_HW = np.zeros((height, width), bool)
    inside_HW[ring:-ring, ring:-ring] = True
    return np.asarray(np.median(pixels_THWC[:, ~inside_HW].reshape(-1, 3), axis=0))


def _nearest(rgb_C: NDArray[Any], palette: dict[str, NDArray[Any]]) -> str:
    return min(palette, key=lambda name: float(np.linalg.norm(palette[name] - rgb_C)))


def _shape(masks_THW: Mask) -> str | None:
    shapes = [_shape_of_frame(mask_HW) for mask_HW in masks_THW]
    most = max(scenes.SHAPES, key=shapes.count)
    return most if shapes.count(most) >= _LEAST_FRAMES * len(shapes) else None


def _shape_of_frame(mask_HW: Mask) -> str | None:
    rows, columns = np.flatnonzero(mask_HW.any(axis=1)), np.flatnonzero(mask_HW.any(axis=0))
    if not len(rows):
        return None
    top, bottom, left, right = rows[0], rows[-1] + 1, columns[0], columns[-1] + 1
    height, width = bottom - top, right - left
    if min(height, width) < _LEAST_SIDE:
        return None
    box = Image.fromarray(mask_HW[top:bottom, left:right].astype(np.uint8) * 255)
    scaled = np.asarray(box.resize((_CELLS, _CELLS), Image.Resampling.BOX)) > 127
    squareness = min(height, width) / max(height, width)
    shares = {name: (scaled & drawn).sum() / (scaled | drawn).sum() for name, drawn in _drawn().items()}
    overlaps = {name: squareness * float(share) for name, share in shares.items()}
    best, second = sorted(overlaps.values(), reverse=True)[:2]
    if best < _LEAST_OVERLAP or best - second < _LEAST_LEAD:
        return None
    return max(overlaps, key=lambda name: overlaps[name])


@cache
def _drawn() -> dict[str, Mask]:
    """Return each shape in its box."""
    x, y = np.meshgrid(*[(np.arange(_CELLS) + 0.5) / _CELLS * 2 - 1] * 2)
    return {"circle": x**2 + y**2 <= 1, "square": np.ones((_CELLS, _CELLS), bool), "triangle": np.abs(x) <= (y + 1) / 2}


def _direction(masks_THW: Mask) -> str | None:
    sizes_T = masks_THW.sum(axis=(1, 2))
    if len(sizes_T) < 2 or not sizes_T.all():
        return None
    height, width = masks_THW.shape[1:]
    x_T = (masks_THW.sum(axis=1) * np.arange(width)).sum(axis=1) / sizes_T
    y_T = (masks_THW.sum(axis=2) * np.arange(height)).sum(axis=1) / sizes_T
    centres_T2 = np.stack([x_T, y_T], axis=1)
    time_T = np.arange(len(centres_T2)) - (len(centres_T2) - 1) / 2
    slope_2 = time_T @ centres_T2 / (time_T @ time_T)
    path_2 = slope_2 * (len(time_T) - 1)
    name = max(scenes.DIRECTIONS, key=lambda each: float(path_2 @ np.array(scenes.DIRECTIONS[each])))
    path = float(path_2 @ np.array(scenes.DIRECTIONS[name]))
    if path < _LEAST_PATH * min(height, width):
        return None
    # What motion in that direction leaves: jumps, turning back, and motion across it.
    centred_T2 = centres_T2 - centres_T2.mean(axis=0)
    steady_T2 = time_T[:, None] * np.array(scenes.DIRECTIONS[name]) * (path / (len(time_T) - 1))
    rest = float(((centred_T2 - steady_T2) ** 2).sum())
    whole = float((centred_T2**2).sum())
    return name if 1 - rest / whole >= _LEAST_EXPLAINED else None
