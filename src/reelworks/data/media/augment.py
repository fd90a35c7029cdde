"""Mirror, rotate and recolour the frames of a clip, all in the same way."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from PIL import Image

from reelworks.core.arrays import F32, Frames
from reelworks.core.shape import Shape

_GREY = 127.5  # the grey that contrast leaves unchanged
_LUMA = np.array([0.299, 0.587, 0.114])  # weights of red, green and blue in a grey of equal lightness (BT.601)
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Augmentation:
    """Changes to the frames of one clip, with every random choice already drawn; by default there are none.

    Attributes:
        flip: Whether left and right are swapped.
        degrees: Rotation clockwise, before the flip.
        brightness: Factor of all values.
        contrast: Factor of the distance from middle grey.
        saturation: Factor of the distance from a grey of equal lightness; 0 leaves no colour.
        hue: Turn of the colours around the grey axis, as a share of the full circle.
    """

    flip: bool = False
    degrees: float = 0.0
    brightness: float = 1.0
    contrast: float = 1.0
    saturation: float = 1.0
    hue: float = 0.0

    def without_color(self) -> Augmentation:
        """Return the same flip and rotation, for companions whose values are no colours."""
        return Augmentation(self.flip, self.degrees)

    def read_shape(self, shape: Shape) -> Shape:
        """Return the shape to decode so that, rotated, it fills `shape` without empty corners.

        It is the upright rectangle around the rotated one. So a rotation takes a smaller part of the file, in which
        each pixel is resized once and none has to be made up.
        """
        if self.degrees == 0.0:
            return shape
        sine, cosine = abs(math.sin(math.radians(self.degrees))), abs(math.cos(math.radians(self.degrees)))
        height = math.ceil(shape.height * cosine + shape.width * sine - _ROUNDING)
        return Shape(shape.num_frames, height, math.ceil(shape.width * cosine + shape.height * sine - _ROUNDING))

    def apply(self, frames: Frames, shape: Shape, *, nearest: bool = False) -> Frames:
        """Change frames `[T, H, W, 3]` of `read_shape(shape)` to frames of `shape`.

        With `nearest`, a rotation mixes no neighbouring values.
        """
        if self.degrees != 0.0:
            frames = np.stack([_rotated(frame, shape, self.degrees, nearest) for frame in frames])
        if self.flip:
            frames = np.ascontiguousarray(frames[:, :, ::-1])
        if self != self.without_color():
            matrix, offset = _color_matrix(self.brightness, self.contrast, self.saturation, self.hue)
            frames = np.stack([_recolored(frame, matrix, offset) for frame in frames])
        return frames


NO_AUGMENTATION = Augmentation()


def _rotated(frame: Frames, shape: Shape, degrees: float, nearest: bool) -> Frames:
    """Rotate a frame clockwise around its centre and keep the middle of `shape`."""
    sine, cosine = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
    (height, width), (x, y) = frame.shape[:2], (shape.width / 2, shape.height / 2)
    # Place in the frame of each pixel of the result: rotated back around both centres.
    transform = (cosine, sine, width / 2 - cosine * x - sine * y, -sine, cosine, height / 2 + sine * x - cosine * y)
    resampling = Image.Resampling.NEAREST if nearest else Image.Resampling.BICUBIC
    image = Image.fromarray(frame).transform(
        (shape.width, shape.height), Image.Transform.AFFINE, transform, resample=resampling
    )
    return np.asarray(image)


def _color_matrix(brightness: float, contrast: float, saturation: float, hue: float) -> tuple[F32, F32]:
    """Return the matrix and offset that change RGB values: hue first, then saturation, brightness and contrast.

    They do not depend on the pixels, so that all frames, and a frame and its crop, change alike.
    """
    grey = np.tile(_LUMA, (3, 1))
    saturated = grey + saturation * (np.eye(3) - grey)
    # The rotation of RGB values around the axis of greys (Rodrigues).
    cosine, sine = math.cos(2 * math.pi * hue), math.sin(2 * math.pi * hue)
    cross = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]]) / math.sqrt(3)
    rotation = cosine * np.eye(3) + sine * cross + (1 - cosine) / 3 * np.ones((3, 3))
    matrix = contrast * brightness * saturated @ rotation
    return matrix.astype(np.float32), np.full(3, (1 - contrast) * _GREY, dtype=np.float32)


def _recolored(frame: Frames, matrix: F32, offset: F32) -> Frames:
    changed: F32 = frame.reshape(-1, 3).astype(np.float32) @ matrix.T + offset
    return np.clip(np.rint(changed), 0, 255).reshape(frame.shape).astype(np.uint8)
