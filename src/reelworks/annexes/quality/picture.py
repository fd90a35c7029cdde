"""Measures of single frames: sharpness, exposure, noise, blocks, colours, black borders, text. A clip has the mean of its stills.

Legend: N tiles, H height, W width, 3 colours.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from reelworks.annexes.quality.measure import MISSING, Luma, SampledClip, Still
from reelworks.data.catalog.store import measured_columns

TEXT_PACKAGE = "rapidocr_onnxruntime"
_BLOCK_PX = 8  # of JPEG, MPEG-4 and the smaller blocks of later codecs
_BLACK, _WHITE = 3, 252  # levels of luma that codecs leave in areas that were cut off at black and white


def tiles(luma_HW: Luma, size_px: int, per_side: int) -> NDArray[np.float32]:
    """Return evenly spaced square parts of a frame, `[N, H, W]`, whose corners lie multiples of a block apart."""
    height, width = luma_HW.shape
    tall, wide = min(size_px, height), min(size_px, width)
    tops, lefts = (
        sorted({int(room * i / max(per_side - 1, 1)) // _BLOCK_PX * _BLOCK_PX for i in range(per_side)})
        for room in (height - tall, width - wide)
    )
    return np.stack([luma_HW[y : y + tall, x : x + wide] for y in tops for x in lefts]).astype(np.float32)


class _OfFrames(ABC):
    """A measure of single frames with one column."""

    def values(self, clip: SampledClip) -> Sequence[float]:
        """Return the mean of the values that the stills of a clip have."""
        present = [value for value in map(self.of_frame, clip.stills) if not math.isnan(value)]
        return (sum(present) / len(present) if present else MISSING,)

    @abstractmethod
    def of_frame(self, still: Still) -> float:
        """Return the value of a frame; NaN for one that has none."""


@final
class Sharpness(_OfFrames):
    """Share of the fine differences that a further blur would remove (Crete et al. 2007): 1 minus their measure of blur.

    Measured where the short side has 512 px at most, as a model sees it, in nine parts of 120 × 120 px whose differences are
    added up, so that even areas count little. Noise counts as sharp; steps of one level, which 8 bits make of any slope, do not.
    """

    name, version, columns, reads = "sharpness", 3, measured_columns.BUILT_IN["sharpness"], ("stills",)
    _SHORT_PX, _TILE_PX, _PER_SIDE, _LEAST_PX = 512, 120, 3, 16

    def of_frame(self, still: Still) -> float:
        """Return the sharpness of one frame; NaN for one without any difference, or with less than 16 px at a side."""
        left, top, right, bottom = still.box
        scale = min(self._SHORT_PX / min(right - left, bottom - top), 1.0)
        sides = [min(self._TILE_PX, round(scale * side)) for side in (right - left, bottom - top)]
        if min(sides) < self._LEAST_PX:
            return MISSING
        wide, tall = (side / scale for side in sides)
        lefts, tops = (
            [low + room * i / (self._PER_SIDE - 1) for i in range(self._PER_SIDE)]
            for low, room in ((left, max(right - left - wide, 0)), (top, max(bottom - top - tall, 0)))
        )
        boxes = [(x, y, min(x + wide, right), min(y + tall, bottom)) for x in lefts for y in tops]
        parts = [still.luma_picture.resize((sides[0], sides[1]), Image.Resampling.BOX, box=box) for box in boxes]
        parts_NHW = np.stack([np.asarray(part, dtype=np.float32) for part in parts])
        return min(self._along(parts_NHW), self._along(parts_NHW.swapaxes(1, 2)))

    @staticmethod
    def _along(parts_NHW: NDArray[np.float32]) -> float:
        """Return the sharpness along the last axis; a mean over 9 pixels is what blurs."""
        fine = np.abs(parts_NHW[..., 5:-4] - parts_NHW[..., 4:-5])
        blurred = np.abs(parts_NHW[..., 9:] - parts_NHW[..., :-9]) / 9  # the difference of two such means
        total, removed = float(fine.sum()), np.maximum(fine - blurred, 0)
        return float(removed[fine > 1].sum()) / total if total > 0 else MISSING


@final
class Exposure:
    """Mean luma, and the shares of pixels at its ends, within black borders."""

    name, version, columns, reads = "exposure", 2, measured_columns.BUILT_IN["exposure"], ("stills",)

    def values(self, clip: SampledClip) -> Sequence[float]:
        """Return brightness and the shares of black and of white pixels."""
        found = np.array([self._still(still) for still in clip.stills])
        return tuple(found.mean(axis=0).tolist())

    @staticmethod
    def _still(still: Still) -> tuple[float, float, float]:
        counts = np.array(still.luma_picture.crop(still.box).histogram())
        shares = counts / counts.sum()
        mean = float(shares @ np.arange(256)) / 255
        return mean, float(shares[: _BLACK + 1].sum()), float(shares[_WHITE:].sum())


@final
class Noise(_OfFrames):
    """Standard deviation of noise by the filter of Immerkær (1996), which leaves out steady changes of brightness.

    It is applied at full size to parts of 16 × 16 px; the noise is that of the more even ones, since texture counts too.
    """

    name, version, columns, reads = "noise", 2, measured_columns.BUILT_IN["noise"], ("stills",)
    _TILE_PX, _PER_SIDE, _PART_PX, _QUANTILE = 146, 2, 16, 0.2
    _DARK, _BRIGHT = 10, 245  # where noise is cut off

    def of_frame(self, still: Still) -> float:
        """Return the noise of one frame; NaN for one that is too small, or has no part that is neither dark nor bright."""
        luma_HW = still.luma[still.active]
        if min(luma_HW.shape) < self._PART_PX + 2:
            return MISSING
        x = tiles(luma_HW, self._TILE_PX, self._PER_SIDE)
        rows = x[:, :-2] - 2 * x[:, 1:-1] + x[:, 2:]
        found = np.abs(rows[..., :-2] - 2 * rows[..., 1:-1] + rows[..., 2:])
        deviation = self._by_part(found) * math.sqrt(math.pi / 2) / 6
        level = self._by_part(x[:, 1:-1, 1:-1])
        usable = deviation[(level > self._DARK) & (level < self._BRIGHT)]
        return float(np.quantile(usable, self._QUANTILE)) if len(usable) else MISSING

    def _by_part(self, values_NHW: NDArray[np.float32]) -> NDArray[np.float32]:
        n, height, width = values_NHW.shape
        side = self._PART_PX
        down, across = height // side, width // side
        cut = values_NHW[:, : down * side, : across * side].reshape(n, down, side, across, side)
        return np.asarray(cut.mean(axis=(2, 4)))


@final
class Blockiness(_OfFrames):
    """Excess of the differences across every eighth border of pixels over those across the others, wherever blocks begin.

    0 for a picture without blocks, 1 where differences are twice as large at their borders. Measured at full size: blocks
    of a file that was resized afterwards are not found.
    """

    name, version, columns, reads = "blockiness", 2, measured_columns.BUILT_IN["blockiness"], ("stills",)
    _TILE_PX, _PER_SIDE, _EVEN = 144, 2, 0.5  # levels that are added, so that nothing is divided by 0

    def of_frame(self, still: Still) -> float:
        """Return the blockiness of one frame; NaN for one of at most two blocks at a side."""
        luma_HW = still.luma[still.active]
        if min(luma_HW.shape) <= 2 * _BLOCK_PX:
            return MISSING
        parts = tiles(luma_HW, self._TILE_PX, self._PER_SIDE)
        return (self._along(parts) + self._along(parts.swapaxes(1, 2))) / 2

    def _along(self, parts_NHW: NDArray[np.float32]) -> float:
        steps = np.abs(np.diff(parts_NHW, axis=-1)).mean(axis=(0, 1))
        whole = steps[: len(steps) // _BLOCK_PX * _BLOCK_PX].reshape(-1, _BLOCK_PX).mean(axis=0)
        at_border = float(whole.max())
        beside = (float(whole.sum()) - at_border) / (_BLOCK_PX - 1)
        return (at_border + self._EVEN) / (beside + self._EVEN) - 1


@final
class Colourfulness(_OfFrames):
    """Spread and strength of colours (Hasler and Süsstrunk 2003, M3): 0 for grey, about 30 for moderate, 80 for vivid colours."""

    name, version, columns, reads = "colourfulness", 2, measured_columns.BUILT_IN["colourfulness"], ("stills",)
    _LINES = 160  # of the picture that are looked at, and columns likewise

    def of_frame(self, still: Still) -> float:
        """Return the colourfulness of one frame."""
        pixels = still.rgb[still.active]
        every = max(min(pixels.shape[:2]) // self._LINES, 1)
        red, green, blue = np.moveaxis(pixels[::every, ::every].astype(np.float32), -1, 0)
        first, second = red - green, (red + green) / 2 - blue
        spread = math.hypot(float(first.std()), float(second.std()))
        return spread + 0.3 * math.hypot(float(first.mean()), float(second.mean()))


@final
class Borders:
    """Black borders on each side, such as those of a letterbox, in all stills of a clip; a frame without them is the crop."""

    name, version, columns, reads = "borders", 2, measured_columns.BUILT_IN["borders"], ("stills",)

    def values(self, clip: SampledClip) -> Sequence[float]:
        """Return the pixels of the borders above, below, to the left and to the right."""
        height, width = clip.stills[0].luma.shape
        rows, columns = clip.stills[0].active
        return float(rows.start), float(height - rows.stop), float(columns.start), float(width - columns.stop)


@final
class TextArea(_OfFrames):
    """Share of the picture that lines of text cover: subtitles, captions, logos with letters; the mean over frames.

    They are found by the detector that comes in the package `rapidocr-onnxruntime` (`reelworks[text]`).
    """

    name, version, reads = "text", 2, ("stills",)
    columns = measured_columns.WITH_EXTRAS["text"]
    _LONGER_PX = 960  # lines of text in larger frames are found in smaller ones too

    def __init__(self) -> None:
        import rapidocr_onnxruntime

        options = {"det_limit_side_len": self._LONGER_PX, "det_limit_type": "max", "intra_op_num_threads": 1}
        self._detector: Any = rapidocr_onnxruntime.RapidOCR(**options)

    def of_frame(self, still: Still) -> float:
        """Return the share of one frame."""
        left, top, right, lower = still.box
        bgr = np.ascontiguousarray(still.rgb[top:lower, left:right, ::-1])
        lines, _ = self._detector(bgr, use_det=True, use_cls=False, use_rec=False)
        covered = Image.new("1", (right - left, lower - top))
        for corners in lines or ():
            ImageDraw.Draw(covered).polygon([(float(x), float(y)) for x, y in corners], fill=1)
        return float(np.asarray(covered).mean())


_DARK = 18  # levels of luma that black may have where its coding or its range is not exact
# Levels of black as it is coded, which is 16 where the range of video was taken for the full one.
_IS_BLACK = np.isin(np.arange(256), [*range(5), *range(14, 19)])
# Share of these in the lines of a border, and lines beside the picture that coding leaves with less. What is as dark and has
# other levels is a picture, as a night sky.
_EVEN, _UNEVEN_LINES = 0.8, 2 * _BLOCK_PX
_LEAST = 0.2  # of the height or width that a picture has between borders; less is something bright in the dark
_STRAY = 0.01  # share of brighter pixels in a line of a border, which coding leaves at its edge
_LIT = 0.15  # share of brighter pixels in a line where the picture begins; a night sky has fewer
_NEAR = 0.01  # share of the height or width within which it begins


def find_active(stills: Sequence[Still]) -> tuple[slice, slice]:
    """Return the rows and columns within the black borders that all stills have; those of a black clip are all."""
    luma = [still.luma for still in stills]
    rows = _within(luma)
    columns = _within([one[rows].T for one in luma])
    if columns != slice(0, luma[0].shape[1]):  # the share of a line's pixels is now that of its picture
        rows = _within([one[:, columns] for one in luma])
    return rows, columns


def _within(luma: Sequence[Luma]) -> slice:
    """Return the lines between the black ones that all stills have at both ends."""
    lit = np.maximum.reduce([np.count_nonzero(one > _DARK, axis=1) / one.shape[1] for one in luma])
    bright = np.flatnonzero(lit > _STRAY)
    whole = slice(0, len(lit))
    if not len(bright):
        return whole
    near = max(2, round(_NEAR * len(lit)))
    first, end = int(bright[0]), int(bright[-1]) + 1
    if lit[first : first + near].max() < _LIT or not _is_even(luma, slice(0, first)):
        first = 0
    if lit[max(end - near, 0) : end].max() < _LIT or not _is_even(luma, slice(end, None)):
        end = len(lit)
    return slice(first, end) if end - first >= _LEAST * len(lit) else whole


def _is_even(luma: Sequence[Luma], lines: slice) -> bool:
    shares = np.minimum.reduce([_IS_BLACK[one[lines]].mean(axis=1) for one in luma])
    return int((shares < _EVEN).sum()) <= _UNEVEN_LINES
