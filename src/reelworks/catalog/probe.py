"""Measure one video or picture, and check that it can be trained on.

Frames are counted rather than read from the header: every packet of the stream is demuxed, which reads the file to
its end (and so detects damage) without decoding it; only the first frame is decoded. Packets that an edit list
hides are not counted, as decoders do not output them. Height and width are as displayed: the rotation of phone
videos and EXIF orientation are applied. Of an animated WebP or PNG, a picture here, the first frame is used.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import BinaryIO, NamedTuple

import av
import numpy as np
from av.stream import Disposition
from PIL import Image, UnidentifiedImageError

from reelworks.catalog import location
from reelworks.catalog.location import MediaPath


class Timing(NamedTuple):
    """Average frames per second, duration, and whether frames are unevenly spaced."""

    fps: float
    duration_seconds: float
    variable_fps: bool


def measure(
    num_frames: int,
    timestamps: Sequence[int],
    last_duration: int,
    tick_seconds: Fraction,
    declared_fps: Fraction | None,
) -> Timing:
    """Measure the timing of a stream of at least one frame.

    Args:
        timestamps: One for each frame in ticks, in any order. Another number of them means that the
            container has no complete timestamps; the declared rate is then used.
        last_duration: Duration of the last frame in ticks; 0 if unknown.
    """
    declared = float(declared_fps) if declared_fps and declared_fps > 0 else 0.0
    ticks = np.sort(np.asarray(timestamps, dtype=np.int64))
    if len(ticks) != num_frames or num_frames == 1 or ticks[0] == ticks[-1]:
        fps = declared or (float(1 / (last_duration * tick_seconds)) if last_duration > 0 else 0.0)
        return Timing(fps, num_frames / fps if fps else 0.0, False)
    steps, span = np.diff(ticks), int(ticks[-1] - ticks[0])
    if _uneven(steps):
        usual = int(np.sort(steps)[(len(steps) - 1) // 2])
        duration = float((span + (last_duration or usual)) * tick_seconds)
        return Timing(num_frames / duration, duration, True)
    measured = (num_frames - 1) / float(span * tick_seconds)
    # Timestamps are rounded to ticks, so over a short span the declared rate is more accurate.
    rounding = max(0.01, 1 / span)
    fps = declared if abs(declared / measured - 1) <= rounding else measured
    return Timing(fps, num_frames / fps, False)


def _uneven(steps: np.ndarray[tuple[int], np.dtype[np.int64]]) -> bool:
    """Return whether steps differ by more than rounding: in milliseconds, 30 fps has steps of 33 and 34."""
    spread = int(steps.max() - steps.min())
    rounding = 1 if steps.min() >= 4 else 0  # with ticks as coarse as frames, one tick is a dropped frame
    return spread > max(rounding, 0.05 * float(np.median(steps)))


# Top-level boxes of ISO/IEC 14496-12 and QuickTime. Anything else after the last box is data that some
# cameras append, and its first bytes are not a size.
_MP4_BOXES = frozenset(
    b"ftyp moov mdat free skip wide moof mfra sidx ssix styp uuid meta pdin udta emsg prft pnot".split()
)
_EBML_HEADER, _MATROSKA_SEGMENT = b"\x1a\x45\xdf\xa3", b"\x18\x53\x80\x67"


def missing_bytes(path: MediaPath) -> int:
    """Return how many bytes are missing from a file, by the length that its container states.

    Supports MP4 and QuickTime, Matroska and WebM, and AVI; the result is 0 for other containers, which state no
    length, and for files whose length a live recorder left open.
    """
    size = location.num_bytes(path)
    with path.open("rb") as f:
        head = f.read(12)
        if head[4:8] in _MP4_BOXES:
            end = _mp4_end(f, size)
        elif head[:4] == _EBML_HEADER:
            end = _matroska_end(f)
        elif head[:4] == b"RIFF" and head[8:12] == b"AVI ":
            length = int.from_bytes(head[4:8], "little")
            # Unclosed files state 0 or all ones; an odd chunk's padding byte may be absent.
            end = 0 if length in (0, 0xFFFFFFFF) else 8 + length - length % 2
        else:
            end = 0
    return max(0, end - size)


def _mp4_end(f: BinaryIO, size: int) -> int:
    position = 0
    while position + 8 <= size:
        f.seek(position)
        header = f.read(16)
        length, box = int.from_bytes(header[:4], "big"), header[4:8]
        if length == 1:
            length = int.from_bytes(header[8:16], "big")
        if box not in _MP4_BOXES or length < 8:  # length 0 means "to the end of the file"
            break
        position += length
    return position


def _matroska_end(f: BinaryIO) -> int:
    f.seek(4)
    header_length = _ebml_size(f)
    if header_length is None:
        return 0
    f.seek(header_length, 1)
    if f.read(4) != _MATROSKA_SEGMENT:
        return 0
    length = _ebml_size(f)
    return 0 if length is None else f.tell() + length


def _ebml_size(f: BinaryIO) -> int | None:
    """Read a variable-length size (RFC 8794, section 6); None if it is unknown or invalid."""
    first = f.read(1)
    if not first or first[0] == 0:
        return None
    num_bytes = 9 - first[0].bit_length()
    value_bits = 7 * num_bytes
    value = int.from_bytes(first + f.read(num_bytes - 1), "big") & ((1 << value_bits) - 1)
    return None if value == (1 << value_bits) - 1 else value


# Containers that are opened, whatever the extension. Playlists are not allowed: they could make the decoder
# open other files or the network.
_CONTAINERS = "mov,matroska,avi,mpeg,mpegts,mpegvideo,flv,asf,ogg,mxf,m4v,h264,hevc"
_OPTIONS = {"protocol_whitelist": "file,subfile", "format_whitelist": _CONTAINERS}

_EXIF_ORIENTATION = 0x0112
_QUIET = threading.Lock()  # warning filters are global to the process, and many threads open pictures


class ProbeError(Exception):
    """A file cannot be trained on, or not be opened as what its name says; the message is short enough for a table."""


def video(path: MediaPath) -> av.container.InputContainer:
    """Open a video, without access to other files or addresses that it may refer to."""
    try:
        return av.open(location.ffmpeg_url(path), options=dict(_OPTIONS), metadata_errors="replace")
    except av.error.ArgumentError:  # EINVAL: a known format that is not among the containers
        raise ProbeError("not a video: the content does not match the extension") from None


def stream(container: av.container.InputContainer) -> av.VideoStream:
    """Return the first video stream that is not a cover picture; raise `ProbeError` if there is none."""
    for candidate in container.streams.video:
        if not candidate.disposition & Disposition.attached_pic:
            # Files are read in parallel, so decoder threads would only compete.
            candidate.codec_context.thread_count = 1
            return candidate
    raise ProbeError("no video stream")


def picture(file: BinaryIO) -> Image.Image:
    """Open a picture without reading its pixels; raise `ProbeError` for other files and decompression bombs."""
    try:
        with _quiet():
            return Image.open(file)
    except Image.DecompressionBombError:
        raise ProbeError("too many pixels: Pillow refuses it as a possible decompression bomb") from None
    except UnidentifiedImageError:
        raise ProbeError("damaged: not a picture of a known format") from None


def orientation(image: Image.Image) -> int:
    """Return the EXIF orientation, 1 to 8; 1 if it is absent or invalid."""
    with _quiet():
        value = image.getexif().get(_EXIF_ORIENTATION, 1)
    return value if value in range(1, 9) else 1


@contextmanager
def _quiet() -> Iterator[None]:
    with _QUIET, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


VIDEO_EXTENSIONS = frozenset({".mp4", ".mov", ".mkv", ".webm", ".avi", ".m4v", ".mpg", ".mpeg"})
IMAGE_EXTENSIONS = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp"})
EXTENSIONS = VIDEO_EXTENSIONS | IMAGE_EXTENSIONS

_CLOCKWISE = {3: 180, 4: 180, 5: 270, 6: 90, 7: 90, 8: 270}  # mirroring (2, 4, 5, 7) does not change the size
_PICTURE_BITS = {"1": 1, "I": 32, "F": 32}


@dataclass(frozen=True, slots=True)
class Probe:
    """Measures of one file; the defaults are those of a file that cannot be trained on."""

    kind: str  # "video" or "image"
    num_frames: int = 0  # frames that a decoder delivers; 1 for a picture
    height: int = 0  # in pixels as displayed, after rotation; so is the width
    width: int = 0
    fps: float = 0.0  # average frames per second; 0 for a picture
    duration_seconds: float = 0.0  # time from the first frame's start to the last one's end; 0 for a picture
    codec: str = ""  # codec or picture format, such as "h264" or "png"
    pixel_format: str = ""  # FFmpeg's name ("yuv420p10le"), or Pillow's mode ("RGB")
    bit_depth: int = 0  # largest number of bits of a channel as decoded
    rotation: int = 0  # degrees clockwise (0, 90, 180, 270) from stored to displayed frames
    variable_fps: bool = False  # whether frames are unevenly spaced in time
    has_alpha: bool = False


def kind_of(name: str) -> str | None:
    """Return "video", "image" or None by a file's extension, in upper or lower case."""
    extension = Path(name).suffix.lower()
    if extension in VIDEO_EXTENSIONS:
        return "video"
    return "image" if extension in IMAGE_EXTENSIONS else None


def probe(path: MediaPath) -> Probe:
    """Measure a file; raise `ProbeError` for one that is empty, damaged or truncated, or has no frame."""
    kind = kind_of(path.name)
    if kind is None:
        raise ProbeError(f"unknown extension {path.suffix!r}")
    try:
        if location.num_bytes(path) == 0:
            raise ProbeError("zero bytes")
        return _video(path) if kind == "video" else _picture(path)
    except ProbeError:
        raise
    except Exception as error:  # decoders raise nearly anything on damaged input
        text = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise ProbeError(f"damaged: {text}") from error


def _video(path: MediaPath) -> Probe:
    missing = missing_bytes(path)
    if missing:
        raise ProbeError(f"truncated: the last {missing:,} bytes are missing")
    with video(path) as opened:
        track = stream(opened)
        frame, times = _demux(opened, track)
        if frame is None or not times:
            raise ProbeError("no frame can be decoded")
        shown = [pts for pts, _, _ in times if pts is not None]
        decoded = [dts for _, dts, _ in times if dts is not None]
        _, _, last_duration = max(times, key=lambda time: (time[0] or 0, time[1] or 0))
        tick = track.time_base or Fraction(1, 1000)
        stamps = shown if len(shown) == len(times) else decoded
        fps, duration_seconds, variable_fps = measure(len(times), stamps, last_duration, tick, track.average_rate)
        rotation = round(-frame.rotation / 90) * 90 % 360
        components = frame.format.components
        return Probe(
            kind="video",
            num_frames=len(times),
            height=frame.width if rotation % 180 else frame.height,
            width=frame.height if rotation % 180 else frame.width,
            fps=fps,
            duration_seconds=duration_seconds,
            codec=track.codec_context.name,
            pixel_format=frame.format.name,
            bit_depth=max(component.bits for component in components),
            rotation=rotation,
            variable_fps=variable_fps,
            # WebM stores transparency outside the stream, where the default decoder does not see it.
            has_alpha=any(c.is_alpha for c in components) or track.metadata.get("alpha_mode") == "1",
        )


_Times = list[tuple[int | None, int | None, int]]  # presentation, decoding and duration, in ticks


def _demux(opened: av.container.InputContainer, track: av.VideoStream) -> tuple[av.VideoFrame | None, _Times]:
    """Decode the first frame and list the times of all displayed frames, in decoding order."""
    frame: av.VideoFrame | None = None
    times: _Times = []
    for packet in opened.demux(track):
        if packet.is_corrupt:
            raise ProbeError(f"damaged: packet {len(times)} is incomplete")
        if frame is None:
            frame = next(iter(packet.decode()), None)
        if packet.size and not packet.is_discard:
            times.append((packet.pts, packet.dts, packet.duration or 0))
    return frame, times


def _picture(path: MediaPath) -> Probe:
    with path.open("rb") as f, picture(f) as image:
        image.load()  # reads to the end: a truncated picture opens without error and fails here
        rotation = _CLOCKWISE.get(orientation(image), 0)
        width, height = image.size if rotation % 180 == 0 else image.size[::-1]
        return Probe(
            kind="image",
            num_frames=1,
            height=height,
            width=width,
            codec=(image.format or "").lower(),
            pixel_format=image.mode,
            bit_depth=16 if image.mode.startswith("I;16") else _PICTURE_BITS.get(image.mode, 8),
            rotation=rotation,
            has_alpha=image.has_transparency_data,
        )
