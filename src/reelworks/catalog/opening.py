"""Open videos and pictures: one set of rules for measuring a file and for training on it."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import av
from av.stream import Disposition
from PIL import Image, UnidentifiedImageError

# What may hide behind an extension. Playlists are not among it: a file that is really one must not
# make anyone open other files or the network.
_CONTAINERS = "mov,matroska,avi,mpeg,mpegts,mpegvideo,flv,asf,ogg,mxf,m4v,h264,hevc"
_OPTIONS = {"protocol_whitelist": "file", "format_whitelist": _CONTAINERS}

_EXIF_ORIENTATION = 0x0112
_QUIET = threading.Lock()  # warning filters belong to the process, pictures are opened by many threads


class OpeningError(Exception):
    """A file that is not what its name says; the message is short enough for a table."""


def video(path: Path) -> av.container.InputContainer:
    """Open a video, sealed against whatever else the file may name.

    Raises:
        OpeningError: The content is of another kind.
        OSError, ValueError: PyAV's errors for files that are missing or damaged.
    """
    try:
        return av.open(str(path.absolute()), options=dict(_OPTIONS), metadata_errors="replace")
    except av.error.ArgumentError:  # EINVAL: the content is known, and not among the containers
        raise OpeningError("no video: the content is of another kind than its name says") from None


def stream(container: av.container.InputContainer) -> av.VideoStream:
    """The stream that is shown: the first video that is not a cover picture.

    Raises:
        OpeningError: There is none.
    """
    for candidate in container.streams.video:
        if not candidate.disposition & Disposition.attached_pic:
            # Files are read in parallel; threads of a decoder would only compete.
            candidate.codec_context.thread_count = 1
            return candidate
    raise OpeningError("no video stream")


def picture(file: BinaryIO) -> Image.Image:
    """Open a picture; its pixels are not read yet.

    Raises:
        OpeningError: No picture, or one of so many pixels that it may be an attack.
    """
    try:
        with _quiet():
            return Image.open(file)
    except Image.DecompressionBombError:
        raise OpeningError("too many pixels for one picture: Pillow refuses it as a bomb") from None
    except UnidentifiedImageError:
        raise OpeningError("damaged: not a picture of a known format") from None


def orientation(image: Image.Image) -> int:
    """EXIF orientation, 1 to 8; 1 where there is none or it is broken, as the picture itself is not."""
    with _quiet():
        value = image.getexif().get(_EXIF_ORIENTATION, 1)
    return value if value in range(1, 9) else 1


@contextmanager
def _quiet() -> Iterator[None]:
    with _QUIET, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
