"""File formats of the demo data: codecs, containers, variants, sizes, lengths and frame rates.

Most clips are small and last a second, so that training is quick; a few are larger, longer or unusual, to exercise
scaling, frame rates, rotation and pixel formats. Each table has one entry for each clip; `scenes` shuffles them by seed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class VideoFormat:
    """Storage format of a video."""

    codec: str  # FFmpeg's name of the encoder
    suffix: str  # file suffix, which also chooses the container
    pix_fmt: str = "yuv420p"
    rotation: int = 0  # degrees clockwise by which players turn the stored frames, as in videos of phones held upright
    variable: bool = False  # whether frames come at irregular times

    @property
    def note(self) -> str:
        """Suffix of the file's name that describes unusual properties."""
        notes = {"yuv420p10le": "-10bit", "yuv444p": "-444"}.get(self.pix_fmt, "")
        notes += f"-rotated-{self.rotation}" if self.rotation else ""
        return notes + ("-vfr" if self.variable else "")


@dataclass(frozen=True)
class PictureFormat:
    """Storage format of a picture: suffix, Pillow mode, EXIF orientation (1 is upright)."""

    suffix: str
    mode: str = "RGB"
    orientation: int = 1

    @property
    def note(self) -> str:
        """Suffix of the file's name that describes unusual properties."""
        notes = {"RGBA": "-alpha", "P": "-palette"}.get(self.mode, "")
        return notes + (f"-exif-{self.orientation}" if self.orientation != 1 else "")


H264_MP4 = VideoFormat("libx264", ".mp4")

# Of each video format, size and frame rate of the tables.
_ROUNDS = 4
VIDEO_FORMATS: tuple[VideoFormat, ...] = _ROUNDS * (
    *(28 * [H264_MP4]),
    VideoFormat("libx264", ".mp4", rotation=90),
    VideoFormat("libx264", ".mp4", rotation=180),
    VideoFormat("libx264", ".mp4", "yuv444p"),
    *(3 * [VideoFormat("libx264", ".mp4", variable=True)]),
    *(7 * [VideoFormat("libx264", ".mov")]),
    VideoFormat("libx264", ".mov", rotation=270),
    *(8 * [VideoFormat("libx265", ".mp4")]),
    VideoFormat("libx265", ".mp4", "yuv420p10le"),
    VideoFormat("libx265", ".mp4", variable=True),
    *(11 * [VideoFormat("libvpx-vp9", ".webm")]),
    VideoFormat("libvpx-vp9", ".webm", variable=True),
    *(7 * [VideoFormat("libsvtav1", ".mp4")]),
    *(7 * [VideoFormat("libsvtav1", ".webm")]),
)

PICTURE_FORMATS: tuple[PictureFormat, ...] = (
    *(12 * [PictureFormat(".png")]),
    PictureFormat(".png", "RGBA"),
    PictureFormat(".png", "P"),
    *(11 * [PictureFormat(".jpg")]),
    *(PictureFormat(".jpg", orientation=orientation) for orientation in (6, 8, 3)),
    *(8 * [PictureFormat(".webp")]),
)

Size = tuple[int, int]

# (width, height) and number of frames are paired, so that no clip is both large and long.
_SMALL_SIZES: tuple[Size, ...] = _ROUNDS * (
    *(38 * [(96, 64)]),
    *(14 * [(144, 96)]),
    *(6 * [(64, 96)]),
    *(5 * [(96, 96)]),
    *(3 * [(128, 96)]),
    *(3 * [(168, 72)]),
    *(3 * [(72, 128)]),
)
_UNUSUAL_LENGTHS = (5, 5, 9, 13, 16, 49, 65, 81, 90, 120, 51, 60)
_SMALL_LENGTHS = (*_UNUSUAL_LENGTHS, *((len(_SMALL_SIZES) - len(_UNUSUAL_LENGTHS)) * [None]))
_LARGE_SIZES: tuple[Size, ...] = _ROUNDS * ((320, 180), (320, 180), (180, 320), (426, 240), (426, 240), (640, 360))
_USUAL_SECONDS = 0.875


def usual_length(fps: Fraction) -> int:
    """Return the frames of a clip of usual length: eight of them, an eighth of a second apart, show its whole motion."""
    return math.ceil(_USUAL_SECONDS * fps) + 1


def video_cuts(order: list[int]) -> list[tuple[Size, int | None]]:
    """Return pairs of size and frame count (None: the usual); `order` permutes the small clips' lengths."""
    small = [(size, _SMALL_LENGTHS[i]) for size, i in zip(_SMALL_SIZES, order, strict=True)]
    return [*small, *((size, None) for size in _LARGE_SIZES)]


NUM_SMALL = len(_SMALL_SIZES)

FRAME_RATES: tuple[Fraction, ...] = _ROUNDS * (
    *(20 * [Fraction(24)]),
    *(12 * [Fraction(25)]),
    *(16 * [Fraction(30)]),
    *(10 * [Fraction(24000, 1001)]),
    *(4 * [Fraction(12)]),
    *(6 * [Fraction(15)]),
    *(5 * [Fraction(50)]),
    *(5 * [Fraction(60)]),
)

PICTURE_SIZES: tuple[Size, ...] = (
    *(14 * [(96, 64)]),
    *(6 * [(144, 96)]),
    *(4 * [(64, 96)]),
    *(4 * [(96, 96)]),
    *(1 * [(128, 96)]),
    *(1 * [(168, 72)]),
    (99, 75),
    *(2 * [(320, 240)]),
    (240, 320),
    (512, 512),
    (640, 360),
)
