"""Tell where in its file a clip's crop lies, for models that are conditioned on it and for reports."""

from __future__ import annotations

from dataclasses import dataclass

from reelworks.core.shape import Shape
from reelworks.data.media import decode
from reelworks.data.media.decode import Request


@dataclass(frozen=True)
class CropBox:
    """Size of a file as displayed, the size to which it is resized, and the crop's place in that; all in pixels.

    `top` and `left` count from the upper left corner of the resized frame; if the clip is mirrored, of the mirrored
    one. Of a rotated clip they are those of an upright rectangle of the same size and centre.
    """

    original_height: int
    original_width: int
    resized_height: int
    resized_width: int
    top: int
    left: int


def crop_box(request: Request, source: Shape) -> CropBox:
    """Return the crop box of a request for a file of the size of `source`."""
    shape, read = request.shape, request.augmentation.read_shape(request.shape)
    height, width = decode.cover(source.height, source.width, read.height, read.width)
    top = decode.crop_offset(height, read.height, request.crop_draw[0]) + (read.height - shape.height) // 2
    left = decode.crop_offset(width, read.width, request.crop_draw[1]) + (read.width - shape.width) // 2
    if request.augmentation.flip:
        left = width - shape.width - left
    return CropBox(source.height, source.width, height, width, top, left)
