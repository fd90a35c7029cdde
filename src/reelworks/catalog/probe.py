"""Measure one video or picture, and find out whether it can be trained on.

Frame counts are counted, not believed: every packet of the stream is demuxed, which reads the file to
its end (and so finds damage) without decoding it; only the first frame is decoded. Packets that an
edit list hides are not counted, as decoders do not show them. Height and width are those a viewer
sees: rotation of phone videos and EXIF orientation are applied. Of an animated WebP or PNG, which is
listed as a picture, the first frame counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import av

from reelworks.catalog import container, opening, timing

VIDEO_EXTENSIONS = frozenset({".mp4", ".mov", ".mkv", ".webm", ".avi", ".m4v", ".mpg", ".mpeg"})
IMAGE_EXTENSIONS = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp"})
EXTENSIONS = VIDEO_EXTENSIONS | IMAGE_EXTENSIONS

_CLOCKWISE = {3: 180, 4: 180, 5: 270, 6: 90, 7: 90, 8: 270}  # mirroring (2, 4, 5, 7) leaves the size alone
_PICTURE_BITS = {"1": 1, "I": 32, "F": 32}


class ProbeError(Exception):
    """A file that cannot be trained on; `reason` is short enough for a table."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Probe:
    """What was measured of one file.

    Attributes:
        kind: "video" or "image".
        num_frames: Frames that a decoder delivers; 1 for a picture.
        height: Pixels as displayed, after rotation.
        width: Pixels as displayed, after rotation.
        fps: Average frames per second; 0 for a picture.
        duration_seconds: Time from the first frame's start to the last one's end; 0 for a picture.
        codec: Codec or picture format, such as "h264" or "png".
        pixel_format: FFmpeg's name ("yuv420p10le"), or Pillow's mode ("RGB").
        bit_depth: Bits of the deepest channel as decoded.
        rotation: Degrees clockwise (0, 90, 180, 270) from stored to displayed frames.
        variable_fps: Frames are unevenly spaced in time.
        has_alpha: There is transparency.
    """

    kind: str
    num_frames: int
    height: int
    width: int
    fps: float
    duration_seconds: float
    codec: str
    pixel_format: str
    bit_depth: int
    rotation: int
    variable_fps: bool
    has_alpha: bool


class _Time(NamedTuple):
    """When a packet's frame is shown and decoded, and for how long, in ticks."""

    pts: int | None
    dts: int | None
    duration: int


def kind_of(name: str) -> str | None:
    """Tell "video", "image" or None (neither) from a file's extension, in any case."""
    extension = Path(name).suffix.lower()
    if extension in VIDEO_EXTENSIONS:
        return "video"
    return "image" if extension in IMAGE_EXTENSIONS else None


def probe(path: Path) -> Probe:
    """Measure a file.

    Raises:
        ProbeError: It is empty, damaged, cut short, or holds no frame.
    """
    kind = kind_of(path.name)
    if kind is None:
        raise ProbeError(f"unknown extension {path.suffix!r}")
    try:
        if path.stat().st_size == 0:
            raise ProbeError("zero bytes")
        return _video(path) if kind == "video" else _picture(path)
    except ProbeError:
        raise
    except opening.OpeningError as error:
        raise ProbeError(str(error)) from None
    except Exception as error:  # decoders raise nearly anything on damaged input
        text = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise ProbeError(f"damaged: {text}") from error


def _video(path: Path) -> Probe:
    missing = container.missing_bytes(path)
    if missing:
        raise ProbeError(f"truncated: the last {missing:,} bytes are missing")
    with opening.video(path) as opened:
        return _stream(opened, opening.stream(opened))


def _stream(opened: av.container.InputContainer, stream: av.VideoStream) -> Probe:
    """Demux a stream to its end and describe it; valid only while the container is open."""
    frame, times = _demux(opened, stream)
    if frame is None or not times:
        raise ProbeError("no frame can be decoded")
    last = max(times, key=lambda time: (time.pts or 0, time.dts or 0))
    tick = stream.time_base or Fraction(1, 1000)
    clock = timing.measure(len(times), _stamps(times), last.duration, tick, stream.average_rate)
    rotation = round(-frame.rotation / 90) * 90 % 360
    height, width = (frame.width, frame.height) if rotation % 180 else (frame.height, frame.width)
    components = frame.format.components
    return Probe(
        kind="video",
        num_frames=len(times),
        height=height,
        width=width,
        fps=clock.fps,
        duration_seconds=clock.duration_seconds,
        codec=stream.codec_context.name,
        pixel_format=frame.format.name,
        bit_depth=max(component.bits for component in components),
        rotation=rotation,
        variable_fps=clock.variable_fps,
        # WebM keeps transparency beside the stream, where the default decoder does not see it.
        has_alpha=any(c.is_alpha for c in components) or stream.metadata.get("alpha_mode") == "1",
    )


def _demux(
    opened: av.container.InputContainer, stream: av.VideoStream
) -> tuple[av.VideoFrame | None, list[_Time]]:
    """Decode the first frame and list the times of all frames shown, in decoding order."""
    frame: av.VideoFrame | None = None
    times: list[_Time] = []
    for packet in opened.demux(stream):
        if packet.is_corrupt:
            raise ProbeError(f"damaged: packet {len(times)} is incomplete")
        if frame is None:
            frame = next(iter(packet.decode()), None)
        if packet.size and not packet.is_discard:
            times.append(_Time(packet.pts, packet.dts, packet.duration or 0))
    return frame, times


def _stamps(times: list[_Time]) -> list[int]:
    """Timestamps in ticks: of presentation where all frames have them, else of decoding, else none."""
    shown = [time.pts for time in times if time.pts is not None]
    decoded = [time.dts for time in times if time.dts is not None]
    return shown if len(shown) == len(times) else decoded


def _picture(path: Path) -> Probe:
    with path.open("rb") as f, opening.picture(f) as image:
        image.load()  # to its end: a picture that was cut short opens well and fails here
        rotation = _CLOCKWISE.get(opening.orientation(image), 0)
        width, height = image.size if rotation % 180 == 0 else image.size[::-1]
        return Probe(
            kind="image",
            num_frames=1,
            height=height,
            width=width,
            fps=0.0,
            duration_seconds=0.0,
            codec=(image.format or "").lower(),
            pixel_format=image.mode,
            bit_depth=16 if image.mode.startswith("I;16") else _PICTURE_BITS.get(image.mode, 8),
            rotation=rotation,
            variable_fps=False,
            has_alpha=image.has_transparency_data,
        )
