"""Cut the planes of plain videos, 8 bits in YUV 4:2:0, to what a crop shows, for conversion to RGB on another device.

Decoding processes then neither resize nor convert, which takes about half of their time. The result is that of
`media.decode.load` up to rounding: values differ by at most 1 of 255 levels, and by 0.02 in the mean of usual frames.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from av.video.reformatter import ColorRange, Interpolation, VideoReformatter
from numpy.typing import NDArray

from reelworks.catalog import display
from reelworks.catalog.formats import ProbeError, kind_of
from reelworks.media import decode
from reelworks.media.augment import Augmentation
from reelworks.media.config import Resize
from reelworks.media.decode import Frames, Request
from reelworks.media.resampling import Axis

# Raise it when frames of the same request change; see `encoders.request_key`.
VERSION = 1
# Planes of more bytes than so many times those of the RGB frames are converted where they are decoded. Copying planes takes
# about 0.4 ms for a MB, converting them 5 to 10 ms for a MB of RGB: the less is left of a frame, the less there is to save,
# and the more memory is taken from the frames that wait for training. Three is 1080 lines made 480 (2.5), but not 256 (9).
MOST_RATIO = 3
_FORMATS = ("yuv420p", "yuvj420p")
_FEWEST = 12  # samples of chroma, and pixels of a result, along an axis: libswscale cuts its filters short for fewer
_PROBE, _RAMP_FROM, _RAMP_STEP = 16, 60, 16  # pixels of a probe, and its ramp of values


@dataclass(frozen=True)
class Planes:
    """Planes of the frames of a clip, cut to what is needed.

    Attributes:
        data: `[T, bytes]` uint8: in each row the samples of Y, U and V.
        layout: Where they lie, and how frames are made of them.
    """

    data: NDArray[np.uint8]
    layout: Layout


@dataclass(frozen=True)
class Layout:
    """Place of a clip's planes in a row of bytes, and all that makes RGB frames of them.

    Attributes:
        rows, columns: Axes of the luma plane.
        phases: Place of chroma samples in what they cover, down and across.
        resize: Filter of resizing.
        matrix: Colour matrix, as `catalog.display` names it.
        full_range: Whether luma uses all values.
        is_turned: Whether rows become columns.
        is_reversed: Whether each axis of the planes, rows and columns, is mirrored.
    """

    rows: Axis
    columns: Axis
    phases: tuple[int, int]
    resize: Resize
    matrix: str
    full_range: bool
    is_turned: bool = False
    is_reversed: tuple[bool, bool] = (False, False)

    @cached_property
    def axes(self) -> tuple[tuple[Axis, Axis], tuple[Axis, Axis], tuple[Axis, Axis]]:
        """Rows and columns of Y, U and V."""
        down, across = self.phases
        chroma = _chroma(self.rows, down), _chroma(self.columns, across)
        return (self.rows, self.columns), chroma, chroma

    @cached_property
    def spans(self) -> tuple[tuple[tuple[int, int], tuple[int, int]], ...]:
        """Rows and columns that are needed of each plane, each as the first and the one after the last."""
        return tuple((rows.span(self.resize), columns.span(self.resize)) for rows, columns in self.axes)

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Height and width of the part of each plane."""
        return [(rows[1] - rows[0], columns[1] - columns[0]) for rows, columns in self.spans]

    @property
    def frame_bytes(self) -> int:
        """Bytes of the planes of one frame."""
        return sum(height * width for height, width in self.sizes)

    def cut(self, frame: Any) -> NDArray[np.uint8]:
        """Return the bytes of one frame."""
        parts = []
        for plane, ((top, bottom), (left, right)) in zip(frame.planes, self.spans, strict=True):
            parts.append(_samples(plane)[top:bottom, left:right].ravel())
        return np.concatenate(parts)


def _samples(plane: Any) -> NDArray[np.uint8]:
    """Return all samples of a frame's plane, with the padding of its lines."""
    return np.frombuffer(plane, dtype=np.uint8).reshape(plane.height, plane.line_size)


def _chroma(axis: Axis, phase: int) -> Axis:
    return replace(axis, source=(axis.source + 1) // 2, phase=phase)


def may_be_used(request: Request) -> bool:
    """Return whether the planes of a request's frames can be converted elsewhere, if its file turns out to be plain.

    Clips with companions must change as these do, and are left to the decoder, as rotations and new colours are.
    """
    return (
        not request.is_image
        and request.decoder == "pyav"
        and not request.nearest
        and request.measures is None
        and not request.whole
        and request.augmentation == Augmentation(flip=request.augmentation.flip)
        and kind_of(request.path.name) != "image"
    )


def most_bytes(request: Request) -> int:
    """Return the bytes that the planes of a clip may have; 0 if it is converted where it is decoded."""
    return MOST_RATIO * _rgb_bytes(request) if may_be_used(request) else 0


def expected_bytes(request: Request) -> int:
    """Return the bytes that a clip will probably have, as planes or as RGB frames, by its size as scanned."""
    rgb, most = _rgb_bytes(request), most_bytes(request)
    if not most:
        return rgb
    if request.size is None:
        return most
    planes = _layout(request, request.size, request.size, 1).frame_bytes * request.shape.num_frames
    return planes if planes <= most else rgb


def _rgb_bytes(request: Request) -> int:
    shape = request.shape
    return int(shape.num_frames * shape.height * shape.width * 3)


def layout(request: Request, frame: Any, shown: tuple[int, int], limit_bytes: int) -> Layout | None:
    """Return how to cut a clip's frames, of which one is given; None if they are not plain, or would have too many bytes.

    Args:
        shown: Height and width of the video as shown, before it is turned.
    """
    try:
        stated = display.matrix_name(frame)
    except ProbeError:  # the decoder decides what becomes of it
        return None
    if frame.format.name not in _FORMATS or frame.interlaced_frame or any(p.line_size <= 0 for p in frame.planes):
        return None
    if display.hdr(frame) or display.is_wide_gamut(frame):
        return None
    orientation = display.orientation(frame)
    found = _layout(request, (frame.height, frame.width), shown, orientation)
    sides = [*(axis.source for axis in found.axes[1]), found.rows.count, found.columns.count]
    if min(sides) < _FEWEST:
        return None
    found = replace(
        found,
        phases=_phases(frame),
        matrix=stated or ("bt709" if display.assumed_matrix(frame) else "bt601"),
        full_range=frame.format.name == "yuvj420p" or frame.color_range == ColorRange.JPEG,
    )
    return found if found.frame_bytes * request.shape.num_frames <= limit_bytes else None


def _layout(request: Request, coded: tuple[int, int], shown: tuple[int, int], orientation: int) -> Layout:
    """Return the layout for frames of a size as stored that are shown in another one before they are turned."""
    turned = orientation in (5, 6, 7, 8)
    height, width = request.cover(*(shown[::-1] if turned else shown))
    # `media.pictures.upright` turns first and mirrors then, and a flip mirrors what the crop left.
    mirrored = (orientation in (3, 4, 7, 8), orientation in (2, 3, 6, 7))
    flips = (False, bool(request.augmentation.flip))
    axes = []
    for at, (resized, count) in enumerate(((height, request.shape.height), (width, request.shape.width))):
        first = request.crop_offsets(height, width)[at]
        axes.append((resized, resized - count - first if mirrored[at] else first, count))
    is_reversed = tuple(a != b for a, b in zip(mirrored, flips, strict=True))
    if turned:
        axes, is_reversed = axes[::-1], is_reversed[::-1]
    rows, columns = (Axis(source, *axis) for source, axis in zip(coded, axes, strict=True))
    return Layout(rows, columns, (128, 128), request.resize, "bt709", False, turned, (is_reversed[0], is_reversed[1]))


def _phases(frame: Any) -> tuple[int, int]:
    """Return the place of chroma samples, down and across, in 256ths of what they cover, as libswscale takes it.

    PyAV does not tell it. So a small frame with the same properties is filled with ramps, and what libswscale makes of
    these gives it away: it adds half a sample to the left, or nothing.
    """
    small = VideoReformatter().reformat(
        frame, _PROBE, _PROBE, frame.format.name, interpolation=Interpolation.POINT, threads=1
    )
    for plane, down in zip(small.planes[1:], (True, False), strict=True):
        ramp = np.minimum(_RAMP_FROM + _RAMP_STEP * np.arange(max(plane.height, plane.line_size)), 255).astype(np.uint8)
        ramp = ramp[: plane.height, None] if down else ramp[None, : plane.line_size]
        plane.update(np.ascontiguousarray(np.broadcast_to(ramp, (plane.height, plane.line_size))).tobytes())
    whole = VideoReformatter().reformat(
        small,
        format=frame.format.name.replace("420", "444"),
        interpolation=Interpolation.BILINEAR | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT,
        threads=1,
    )
    middle, phases = _PROBE // 2, []
    for plane, down in zip(whole.planes[1:], (True, False), strict=True):
        line = _samples(plane)[:_PROBE, middle] if down else _samples(plane)[middle, :_PROBE]
        place = (float(line[middle]) - _RAMP_FROM) / _RAMP_STEP  # of the pixel in the middle, among the samples
        phases.append(round(256 * ((middle + 0.5) / 2 - place)))
    return phases[0], phases[1]


class _Mixed(Exception):  # noqa: N818
    """The frames of a file are not alike."""


class _Cut:
    """Cuts frames that are plain, and converts others to RGB; the first frame decides."""

    def __init__(self, request: Request, limit_bytes: int) -> None:
        self._request, self._limit_bytes = request, limit_bytes
        self._to_rgb: decode.ToRgb | None = None
        self._look: tuple[Any, ...] = ()
        self.layout: Layout | None = None

    def __call__(self, frame: Any, shown: tuple[int, int]) -> Frames:
        if self._to_rgb is None and self.layout is None:
            self.layout, self._look = layout(self._request, frame, shown, self._limit_bytes), _look(frame)
        if self.layout is not None:
            if _look(frame) != self._look:
                raise _Mixed
            return self.layout.cut(frame)
        self._to_rgb = self._to_rgb or decode.ToRgb(self._request)
        return self._to_rgb(frame, shown)


def _look(frame: Any) -> tuple[Any, ...]:
    """Return the properties of a frame that must be those of the frame by which a layout was made."""
    colors = int(frame.colorspace), int(frame.color_range), display.hdr(frame), display.is_wide_gamut(frame)
    return frame.format.name, frame.height, frame.width, frame.interlaced_frame, *colors, display.orientation(frame)


def load(request: Request, limit_bytes: int) -> Frames | Planes:
    """Read the planes of a clip that `may_be_used`; or its RGB frames, if it is not plain or has more bytes than these.

    Raises:
        MediaError: The file is missing or damaged, or has fewer frames than requested.
    """
    read = decode.with_reasons(request, lambda local: _read(local, limit_bytes)) if limit_bytes else None
    return decode.load(request) if read is None else read


def _read(request: Request, limit_bytes: int) -> Frames | Planes | None:
    cut = _Cut(request, limit_bytes)
    try:
        data = decode.read_video(request, cut)
    except _Mixed:
        return None
    return Planes(data, cut.layout) if cut.layout is not None else request.augmentation.apply(data, request.shape)
