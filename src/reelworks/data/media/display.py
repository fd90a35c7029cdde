"""Tell how a player shows the frames of a video: its size, orientation, colours and fields.

Files are measured and decoded by the same functions, so that the catalog's sizes are those of decoded frames.
"""

from __future__ import annotations

from fractions import Fraction

import av
import numpy as np
from av.sidedata.sidedata import Type
from av.video.reformatter import ColorRange, Colorspace

from reelworks.data.media.formats import ProbeError
from reelworks.data.media.stated_colors import StatedColors, of_numbers
from reelworks.data.media.video import OpenVideo

# ISO/IEC 23091-2 numbers of matrix coefficients that libswscale converts.
_MATRICES = {1: "bt709", 4: "fcc", 5: "bt601", 6: "bt601", 7: "smpte240m", 9: "bt2020"}
_UNSPECIFIED = (2, 3)
_PROGRESSIVE = 1  # field orders: 0 unknown, 1 progressive, others interlaced
_RATIOS = (Fraction(1, 10), Fraction(10))  # plausible shapes of a pixel


_TURNED = {1: 8, 2: 3, 3: 6}  # EXIF orientations by quarters of a turn counterclockwise


def pixel_aspect_ratio(track: av.VideoStream) -> Fraction:
    """Return width to height of a pixel, 1 if the file does not say; raise `ProbeError` for an implausible one."""
    ratio = track.sample_aspect_ratio
    if not ratio or ratio.numerator <= 0:
        return Fraction(1)
    if not _RATIOS[0] <= ratio <= _RATIOS[1]:
        raise ProbeError(f"the pixels' aspect ratio of {ratio.numerator}:{ratio.denominator} is not plausible")
    return ratio


def orientation(frame: av.VideoFrame) -> int:
    """Return a frame's orientation as one of EXIF, 1 to 8: the multiple of 90 degrees nearest to its display matrix."""
    try:
        data = frame.side_data.get(Type.DISPLAYMATRIX)  # type: ignore[call-overload]
    except ValueError:  # other data, such as EXIF, is of a kind that PyAV does not know
        return _TURNED.get(round(frame.rotation / 90) % 4, 1)
    if data is None:
        return 1
    a, b, _, c, d = np.frombuffer(bytes(data), dtype=np.int32)[:5].astype(np.float64)
    if abs(a) + abs(d) >= abs(b) + abs(c):  # x' = ax, y' = dy
        return {(False, False): 1, (True, False): 2, (True, True): 3, (False, True): 4}[a < 0, d < 0]
    return {(False, False): 5, (True, False): 6, (True, True): 7, (False, True): 8}[c < 0, b < 0]  # x' = cy, y' = bx


def size(video: OpenVideo) -> tuple[int, int]:
    """Return height and width of a video as cropped and with square pixels, which change the width, before it is turned.

    It is to be asked before frames are decoded: where their size changes midway, players scale them to that of the
    beginning. Raises `ProbeError` for an implausible shape of pixels.
    """
    height, width = video.size
    return height, max(1, round(width * pixel_aspect_ratio(video.stream)))


def has_matrix(frame: av.VideoFrame) -> bool:
    """Return whether a frame's pixels are luma and chroma, rather than RGB or grey."""
    return not frame.format.is_rgb and len(frame.format.components) >= 3


def matrix_name(frame: av.VideoFrame) -> str:
    """Return the colour matrix that a frame states, "" if none; raise `ProbeError` for one that is not converted."""
    if not has_matrix(frame) or frame.colorspace in _UNSPECIFIED:
        return ""
    name = _MATRICES.get(frame.colorspace)
    if name is None:
        raise ProbeError(f"colours are stored by matrix {int(frame.colorspace)} of ISO/IEC 23091-2, which is not read")
    return name


def assumed_matrix(frame: av.VideoFrame) -> Colorspace | None:
    """Return the matrix of frames that state none, as players assume: BT.709 if HD; None keeps the stated or BT.601."""
    unstated = has_matrix(frame) and frame.colorspace in _UNSPECIFIED
    return Colorspace.ITU709 if unstated and (frame.height >= 720 or frame.width >= 1280) else None


def is_full_range(frame: av.VideoFrame) -> bool:
    """Return whether luma uses all values, instead of 16 to 235 of 255."""
    return has_matrix(frame) and bool(frame.color_range == ColorRange.JPEG)


def stated_colors(frame: av.VideoFrame) -> StatedColors:
    """Return the primaries and, of HDR, the transfer function of a frame."""
    return of_numbers(int(frame.color_primaries), int(frame.color_trc))


def may_be_interlaced(track: av.VideoStream) -> bool:
    """Return whether the header says that a frame is two fields; single frames may not be."""
    return int(track.codec_context.field_order) > _PROGRESSIVE
