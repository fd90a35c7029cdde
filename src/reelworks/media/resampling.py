"""Weights by which libswscale resizes one axis of a plane, so that another device can resize alike.

Pixel `i` of the result lies at `(i + 0.5) · ratio - phase` of the source, and is the mean of the samples around it, weighted
by the filter's kernel. When a picture is made smaller, the kernel is stretched by the ratio, which antialiases. Samples
beyond an edge repeat the edge. libswscale computes with integers of 12 to 15 bits, and these weights are exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reelworks.media.config import Resize

_ONE = 1 << 16  # libswscale counts the ratio in these parts
_MIDDLE = 128  # phase of samples that lie in the middle of what they cover
_CUBIC = -0.6  # sharpness of libswscale's bicubic filter: Keys' kernel with this parameter
_REACH: dict[Resize, int] = {"bicubic": 2, "lanczos": 3}


@dataclass(frozen=True)
class Axis:
    """Resizing of one axis of a plane, and the pixels of the result that are used.

    Attributes:
        source: Samples of the plane.
        resized: Pixels of the whole result.
        first, count: The pixels that are used.
        phase: Place of each sample in what it covers, in 256ths from its beginning.
    """

    source: int
    resized: int
    first: int
    count: int
    phase: int = _MIDDLE

    @property
    def ratio(self) -> float:
        """Samples for each pixel of the result."""
        return (self.source * _ONE + self.resized // 2) // self.resized / _ONE

    @property
    def is_kept(self) -> bool:
        """Whether pixels are the samples."""
        return self.source == self.resized and self.phase == _MIDDLE

    def centers(self) -> NDArray[np.float64]:
        """Return the place of each pixel among the samples."""
        pixels = np.arange(self.first, self.first + self.count, dtype=np.float64)
        return (pixels + 0.5) * self.ratio - self.phase / 256

    def reach(self, resize: Resize) -> float:
        """Return how far from its centre a pixel has weights."""
        if self.is_kept:
            return 0.0
        return (self._stretch + 1) / 2 if resize == "area" else _REACH[resize] * self._stretch

    def span(self, resize: Resize) -> tuple[int, int]:
        """Return the first sample that is needed and the one after the last."""
        centers, reach, last = self.centers()[[0, -1]], self.reach(resize), self.source - 1
        low, high = math.ceil(centers[0] - reach), math.floor(centers[1] + reach)
        low = min(max(low, 0), last)
        return low, min(max(high, low), last) + 1

    def weights(self, resize: Resize) -> NDArray[np.float32]:
        """Return the weight of each sample of `span` in each pixel, `[count, samples]`."""
        centers, (start, stop) = self.centers(), self.span(resize)
        first, number = self._samples(centers, resize)
        nearby = first.astype(np.int64)[:, None] + np.arange(number)
        weight = self._kernel(nearby - centers[:, None], resize)
        weight /= weight.sum(axis=1, keepdims=True)
        matrix = np.zeros((self.count, stop - start))
        rows = np.broadcast_to(np.arange(self.count)[:, None], nearby.shape)
        np.add.at(matrix, (rows, np.clip(nearby, start, stop - 1) - start), weight)
        return matrix.astype(np.float32)

    @property
    def _stretch(self) -> float:
        return max(self.source / self.resized, 1.0)

    def _samples(self, centers: NDArray[np.float64], resize: Resize) -> tuple[NDArray[np.float64], int]:
        """Return the first sample that libswscale considers for each pixel, and their number."""
        if self.is_kept:
            return np.round(centers), 1
        if resize == "area" and self._stretch == 1:
            return np.floor(centers), 2
        width = 1 if resize == "area" else 2 * _REACH[resize]
        number = max(min(1 + math.ceil(width * self._stretch), self.source - 2), 1)
        # Rounded towards 0, so that near the first edge it lacks a sample that it should have.
        return np.trunc(centers - (number - 2) / 2), number

    def _kernel(self, distance: NDArray[np.float64], resize: Resize) -> NDArray[np.float64]:
        if self.is_kept:
            return np.ones_like(distance)
        stretch, d = self._stretch, np.abs(distance)
        if (
            resize == "area"
        ):  # the overlap of a sample and a pixel; linear between samples when a picture is made larger
            return np.clip((stretch + 1) / 2 - d, 0, 1)
        d = d / stretch
        if resize == "lanczos":
            return np.where(d < 3, np.sinc(d) * np.sinc(d / 3), 0)
        near = ((_CUBIC + 2) * d - (_CUBIC + 3)) * d * d + 1
        far = _CUBIC * (((d - 5) * d + 8) * d - 4)
        return np.where(d < 1, near, np.where(d < 2, far, 0))
