"""Rendering of scenes: one antialiased shape on a plain background."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelworks.demo import palette
from reelworks.demo.scenes import Scene

Frames = NDArray[np.uint8]

# Half the side of a square with about the area of a circle of radius 1.
_SQUARE = 0.886
# Free pixels between the shape at the end of its path and the edge of the frame, in radii.
_MARGIN = 0.1
# Maximum of half a path as a share of the short side, so that a crop to a squarer shape keeps most of it.
_LONGEST = 0.6


def frames(scene: Scene) -> Frames:
    """Draw a scene.

    Returns:
        frames_THWC, uint8 RGB, as displayed.
    """
    x_T, y_T = path(scene)
    dx_TW = np.arange(0.5, scene.width, dtype=np.float32) - x_T[:, None]
    dy_TH = np.arange(0.5, scene.height, dtype=np.float32) - y_T[:, None]
    distance_THW = _distance(scene, dx_TW[:, None, :], dy_TH[:, :, None])
    cover_THW = (np.clip(0.5 - distance_THW, 0, 1) * 255 + 0.5).astype(np.uint8)
    ground_C = np.array(palette.BACKGROUNDS[scene.subject.background])
    colour_C = np.array(palette.COLOURS[scene.subject.colour])
    blend_VC = np.rint(ground_C + np.linspace(0, 1, 256)[:, None] * (colour_C - ground_C)).astype(np.uint8)
    frames_THWC: Frames = blend_VC[cover_THW]
    return frames_THWC


def path(scene: Scene) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the shape's centre in each frame, in pixels: (x_T, y_T). It moves evenly in time, not per frame."""
    centre = np.array([scene.width / 2, scene.height / 2])
    if scene.subject.direction is None:
        step = np.array([0, 1])
        along_T = np.zeros(1)
    else:
        step = np.array(palette.DIRECTIONS[scene.subject.direction])
        side = scene.width if step[0] else scene.height
        reach = min(side / 2 - (1 + _MARGIN) * scene.radius_px, _LONGEST * min(scene.width, scene.height))
        along_T = np.interp(scene.pts, (0, scene.pts[-1]), (-reach, reach))
    across = scene.offset_px * np.abs(step[::-1])
    xy_T2 = (centre + across + along_T[:, None] * step).astype(np.float32)
    return xy_T2[:, 0], xy_T2[:, 1]


def _distance(scene: Scene, dx: NDArray[Any], dy: NDArray[Any]) -> NDArray[Any]:
    """Return the signed distance in pixels to the shape's outline, negative inside; exact except at outer corners."""
    r = scene.radius_px
    distance: NDArray[Any]
    match scene.subject.shape:
        case "circle":
            distance = np.sqrt(dx**2 + dy**2) - r
        case "square":
            distance = np.maximum(np.abs(dx), np.abs(dy)) - _SQUARE * r
        case _:  # a triangle with its tip up, as high and as wide as the circle
            distance = np.maximum(dy - r, (2 * np.abs(dx) - dy - r) / math.sqrt(5))
    return distance
