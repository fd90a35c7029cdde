"""Metrics that compare pixels, with a reference or from frame to frame; they need no weights.

Legend: T frames, H height, W width, 3 colours.
"""

from __future__ import annotations

from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from reelworks.core import machine
from reelworks.core.arrays import Frames
from reelworks.core.shape import Shape
from reelworks.inference.evaluate.clips import MeasuredClip
from reelworks.inference.evaluate.metric import Settings, Skip

_MAX_DB = 100.0  # of frames that are equal, for which the ratio is infinite
_WINDOW, _SIGMA = 11, 1.5  # of SSIM, Wang et al. 2004
_C1, _C2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
_LUMA = (0.299, 0.587, 0.114)  # BT.601
_BLOCK_PX = 8


def _reference(clip: MeasuredClip) -> Frames:
    if clip.reference is None:
        raise Skip("it has no reference of the same name")
    if clip.reference.shape != clip.frames.shape:
        sizes = " and ".join(str(Shape(*frames.shape[:3])) for frames in (clip.frames, clip.reference))
        raise Skip(f"clip and reference differ in frames or size ({sizes})")
    return clip.reference


@final
class Psnr:
    """Peak signal-to-noise ratio in dB, the mean over frames; equal frames count as 100 dB."""

    name, higher_is_better, requires_reference = "psnr", True, True

    def __init__(self, settings: Settings) -> None:
        pass

    def value(self, clip: MeasuredClip) -> float:
        """Return the mean ratio of a clip's frames."""
        mean_T = np.square(clip.frames.astype(np.float64) - _reference(clip)).mean(axis=(1, 2, 3))
        floor = 255.0**2 * 10 ** (-_MAX_DB / 10)
        return float((10 * np.log10(255.0**2 / np.maximum(mean_T, floor))).mean())


@final
class Ssim:
    """Structural similarity (Wang et al. 2004) in [-1, 1], of each colour in Gaussian windows; the mean over frames."""

    name, higher_is_better, requires_reference = "ssim", True, True

    def __init__(self, settings: Settings) -> None:
        self._device = machine.exact_device(settings.device)
        at = torch.arange(_WINDOW, dtype=torch.float64) - _WINDOW // 2
        weight = torch.exp(-at.square() / (2 * _SIGMA**2))
        self._kernel = (weight / weight.sum()).to(self._device)

    def value(self, clip: MeasuredClip) -> float:
        """Return the mean similarity of a clip's frames."""
        reference = _reference(clip)
        if min(clip.frames.shape[1:3]) < _WINDOW:
            raise Skip(f"it is smaller than a window of {_WINDOW} × {_WINDOW} pixels")
        return float(np.mean([self._frame(*pair) for pair in zip(clip.frames, reference, strict=True)]))

    def _frame(self, a_HW3: NDArray[np.uint8], b_HW3: NDArray[np.uint8]) -> float:
        a, b = (torch.from_numpy(x.copy()).to(self._device).double().movedim(-1, 0) for x in (a_HW3, b_HW3))
        mean_a, mean_b, aa, bb, ab = (self._mean(x) for x in (a, b, a * a, b * b, a * b))
        var_a, var_b, covariance = aa - mean_a**2, bb - mean_b**2, ab - mean_a * mean_b
        similar = (2 * mean_a * mean_b + _C1) * (2 * covariance + _C2)
        return float((similar / ((mean_a**2 + mean_b**2 + _C1) * (var_a + var_b + _C2))).mean())

    def _mean(self, image_3HW: Tensor) -> Tensor:
        rows = functional.conv2d(image_3HW[:, None], self._kernel[None, None, :, None])
        return functional.conv2d(rows, self._kernel[None, None, None, :])[:, 0]


def _luma(clip: MeasuredClip, least: int, what: str) -> NDArray[np.float64]:
    """Return the luma of a clip's frames, `[T, H, W]` in levels of 255."""
    if len(clip.frames) < least:
        raise Skip(f"{what} needs {least} frames, and it has {len(clip.frames)}")
    return np.asarray(clip.frames @ np.array(_LUMA))


@final
class Motion:
    """Amount of motion: mean change of luma from frame to frame, in levels of 255; 0 for a clip that stands still."""

    name, higher_is_better, requires_reference = "motion", True, False

    def __init__(self, settings: Settings) -> None:
        pass

    def value(self, clip: MeasuredClip) -> float:
        """Return the mean change between the frames of a clip."""
        return float(np.abs(np.diff(_luma(clip, 2, "motion"), axis=0)).mean())


@final
class Flicker:
    """Flicker: how far the luma of blocks departs from a steady change over three frames, in levels of 255.

    A light that is on in every other frame counts with its brightness, a fade of constant speed with 0. Blocks have 8 × 8
    pixels, so that edges that move and noise count less than brightness that changes.
    """

    name, higher_is_better, requires_reference = "flicker", False, False

    def __init__(self, settings: Settings) -> None:
        pass

    def value(self, clip: MeasuredClip) -> float:
        """Return the mean departure of a clip's blocks."""
        luma_THW = torch.from_numpy(_luma(clip, 3, "flicker"))
        size = [min(_BLOCK_PX, side) for side in luma_THW.shape[1:]]
        blocks = functional.avg_pool2d(luma_THW[:, None], size)[:, 0]
        return float((blocks[1:-1] - (blocks[:-2] + blocks[2:]) / 2).abs().mean())
