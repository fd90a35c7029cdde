"""Parts of clips that are kept: some frames, or an area of all frames, for models that are told both in pixels.

Frames are drawn by the strategies of `frame_masks`, but counted in frames of the clip: these models take a mask of pixels.
The areas are rectangles. `inpaint` makes one anew, a quarter to three quarters as high and as wide as the clip. `outpaint`
keeps one and makes one to four margins anew, each an eighth to three eighths of the height or width.

Legend: B clips, T frames, H height, W width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reelworks.core import hash_rng
from reelworks.core.arrays import U64
from reelworks.core.shape import Shape
from reelworks.data.loader import frame_masks

WHITE = 255
_MARGINS = ("top", "bottom", "left", "right")


@dataclass(frozen=True)
class PartMask:
    """A mask of a clip: some parts are made anew, and the others are given to the model.

    Attributes:
        kept_frames: Numbers of the frames that are given.
        box: Top, bottom, left and right of an area of all frames, in pixels; None if there is none.
        keeps_box: Whether the area is given, and what is around it is made anew.
    """

    kept_frames: tuple[int, ...] = ()
    box: tuple[int, int, int, int] | None = None
    keeps_box: bool = False

    def pixels(self, shape: Shape) -> NDArray[np.uint8]:
        """Return the mask of a clip, `[T, H, W, 1]`, white where it is made anew."""
        inside, outside = (0, WHITE) if self.keeps_box else (WHITE, 0)
        mask = np.full((shape.num_frames, shape.height, shape.width, 1), outside if self.box else WHITE, np.uint8)
        if self.box is not None:
            top, bottom, left, right = self.box
            mask[:, top:bottom, left:right] = inside
        mask[list(self.kept_frames)] = 0
        return mask


def draw(ratios: Mapping[str, float], shape: Shape, word_B: U64) -> tuple[PartMask | None, ...]:
    """Draw the mask of each clip by the shares of strategies; None if all of the clip is made anew.

    The ratios are those of `ObjectiveConfig.mask_ratios`. Frames of a picture cannot be given, but areas can.
    """
    masks: list[PartMask | None] = [None] * len(word_B)
    for name, chosen_B in frame_masks.drawn_strategies(ratios, word_B):
        for at in np.flatnonzero(chosen_B).tolist():
            if name in frame_masks.AREAS:
                masks[at] = _area(name, shape, word_B[at])
                continue
            generated_T = frame_masks.frame_mask(name, shape.num_frames, word_B[at : at + 1])[0]
            kept = tuple(np.flatnonzero(~generated_T).tolist())
            masks[at] = PartMask(kept) if kept else None
    return tuple(masks)


def _area(name: str, shape: Shape, word: U64) -> PartMask:
    if name == "inpaint":
        (top, bottom), (left, right) = (_stretch(shape, axis, word) for axis in ("height", "width"))
        return PartMask(box=(top, bottom, left, right))
    chosen = 1 + int(hash_rng.below(hash_rng.hash64(word, "margins"), 2 ** len(_MARGINS) - 1))
    sides = (shape.height, shape.height, shape.width, shape.width)
    shares = (0.125 + 0.25 * float(hash_rng.uniform(hash_rng.hash64(word, margin))) for margin in _MARGINS)
    top, bottom, left, right = (
        max(round(side * share), 1) if chosen >> bit & 1 else 0
        for bit, (side, share) in enumerate(zip(sides, shares, strict=True))
    )
    return PartMask(box=(top, shape.height - bottom, left, shape.width - right), keeps_box=True)


def _stretch(shape: Shape, axis: str, word: U64) -> tuple[int, int]:
    """Draw the ends of an area along the height or the width."""
    size: int = getattr(shape, axis)
    length, place = (float(hash_rng.uniform(hash_rng.hash64(word, axis, what))) for what in ("length", "place"))
    pixels = max(round(size * (0.25 + 0.5 * length)), 1)
    start = round(place * (size - pixels))
    return start, start + pixels
