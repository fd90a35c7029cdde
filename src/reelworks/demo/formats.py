"""File formats of the demo data: codecs, containers, variants, sizes, lengths and frame rates.

Most clips are small and last a second, so that training is quick; a few are larger, longer or unusual, to exercise
scaling, frame rates, rotation and pixel formats. Each table has one entry for each clip; `scenes` shuffles them by seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from reelworks.core import toml


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

_ROUNDS = 4  # of each video format, size and frame rate of the tables
_TABLES = toml.beside(__file__, "formats.toml")


def _table(name: str, make: Callable[[Any], Any]) -> tuple[Any, ...]:
    """Return the values of a table, each as often as it says."""
    return tuple(value for times, told in _TABLES[name] for value in times * [make(told)])


VIDEO_FORMATS: tuple[VideoFormat, ...] = _ROUNDS * _table("videos", lambda format: VideoFormat(**format))

PICTURE_FORMATS: tuple[PictureFormat, ...] = _table("pictures", lambda format: PictureFormat(**format))

Size = tuple[int, int]

# (width, height) and number of frames are paired, so that no clip is both large and long.
_SMALL_SIZES: tuple[Size, ...] = _ROUNDS * _table("small_sizes", tuple)
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

FRAME_RATES: tuple[Fraction, ...] = _ROUNDS * _table("frame_rates", Fraction)

PICTURE_SIZES: tuple[Size, ...] = _table("picture_sizes", tuple)
