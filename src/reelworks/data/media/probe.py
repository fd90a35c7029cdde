"""Measure one video or picture, and check that it can be trained on.

Frames are counted rather than read from the header: every packet of the stream is demuxed, which reads the file to
its end (and so detects damage) without decoding it; only the first frame is decoded, and more where packets do not tell
the frames (`frame_times`). All frames of an animated picture are decoded. Height and width are as displayed: crops of
containers, rotation and mirroring of phone videos, EXIF orientation and the shape of pixels are applied.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from fractions import Fraction
from operator import attrgetter
from typing import Any, BinaryIO, NamedTuple

import av
import numpy as np
from av.bitstream import BitStreamFilterContext
from numpy.typing import NDArray

from reelworks.data.media import containers, display, formats, frame_times, location, pictures, storages, video
from reelworks.data.media.containers import stated_bytes
from reelworks.data.media.formats import ProbeError, kind_of, why_not_read
from reelworks.data.media.frame_times import FrameTimes, Packets
from reelworks.data.media.location import MediaPath
from reelworks.data.media.video import OpenVideo

# Raise it when files get other measures: those that a catalog has are then opened again by its next scan.
VERSION = 6


class FrameTiming(NamedTuple):
    """Average frames per second, duration, and whether frames are unevenly spaced."""

    fps: float
    duration_seconds: float
    variable_fps: bool


def measure(
    num_frames: int,
    timestamps: Sequence[int] | NDArray[np.int64],
    last_duration: int,
    tick_seconds: Fraction,
    declared_fps: Fraction | None,
) -> FrameTiming:
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
        return FrameTiming(fps, num_frames / fps if fps else 0.0, False)
    steps, span = np.diff(ticks), int(ticks[-1] - ticks[0])
    if _uneven(steps) and not (tick_seconds <= _FINE_SECONDS and _is_line(ticks)):
        usual = int(np.sort(steps)[(len(steps) - 1) // 2])
        duration = float((span + (last_duration or usual)) * tick_seconds)
        return FrameTiming(num_frames / duration, duration, True)
    measured = (num_frames - 1) / float(span * tick_seconds)
    # Timestamps are rounded to ticks, so over a short span the declared rate is more accurate.
    fps = declared if abs(declared / measured - 1) <= max(0.01, 1 / span) else measured
    return FrameTiming(fps, num_frames / fps, False)


_FINE_SECONDS = Fraction(1, 1000)  # ticks that a missing frame is longer than


def _is_line(ticks: NDArray[np.int64]) -> bool:
    """Return whether times rise evenly but for rounding, as those of more frames than ticks allow to tell apart."""
    return bool(np.abs(ticks - np.linspace(ticks[0], ticks[-1], len(ticks))).max() <= 1)


def _uneven(steps: np.ndarray[tuple[int], np.dtype[np.int64]]) -> bool:
    """Return whether steps differ by more than rounding: in milliseconds, 30 fps has steps of 33 and 34."""
    spread = int(steps.max() - steps.min())
    rounding = 1 if steps.min() >= 4 else 0  # with ticks as coarse as frames, one tick is a dropped frame
    return spread > rounding and spread > 0.05 * float(np.median(steps))


_CLOCKWISE = {3: 180, 4: 180, 5: 270, 6: 90, 7: 90, 8: 270}  # degrees of each EXIF orientation
_MIRRORED = (2, 4, 5, 7)


@dataclass(frozen=True, slots=True)
class Probe:
    """Measures of one file; the defaults are those of a file that cannot be trained on."""

    # "video" (also of an animated picture), "image", "sound" for one without pictures, which counts as a frame of one
    # pixel, or "other" for a file of another type.
    kind: str
    num_frames: int = 0  # frames that a decoder delivers; 1 for a picture
    height: int = 0  # in square pixels as displayed, after rotation; so is the width
    width: int = 0
    fps: float = 0.0  # average frames per second; 0 for a picture
    duration_seconds: float = 0.0  # time from the first frame's start to the last one's end; 0 for a picture
    codec: str = ""  # codec or picture format, such as "h264" or "png"
    pixel_format: str = ""  # FFmpeg's name ("yuv420p10le"), or Pillow's mode ("RGB")
    bit_depth: int = 0  # largest number of bits of a channel as decoded
    rotation: int = 0  # degrees clockwise (0, 90, 180, 270) from stored to displayed frames, after mirroring
    variable_fps: bool = False  # whether frames are unevenly spaced in time
    has_alpha: bool = False  # whether a video has a channel of opacity, or a picture a pixel that is not opaque
    mirrored: bool = False  # whether stored frames are mirrored left to right before they are turned
    pixel_aspect_ratio: float = 0.0  # width to height of a stored pixel
    hidden_frames: int = 0  # frames that an edit list hides
    interlaced: bool = False  # whether a frame consists of two fields
    color_matrix: str = ""  # as stated: "bt709", "bt601", "bt2020", "smpte240m", "fcc"; "" if unstated, RGB or grey
    full_range: bool = False  # whether luma uses all values, instead of 16 to 235 of 255
    hdr: str = ""  # transfer function of a high dynamic range: "pq" or "hlg"
    icc_profile: str = ""  # description of a picture's colour profile, see `pictures.profile_name`; "" without one
    sound: str = ""  # codec of the first track of sound that can be decoded, such as "aac"; "" without one
    notes: tuple[str, ...] = ()  # what a person should know of the file, of those below; not kept in the catalog

    def values(self) -> dict[str, Any]:
        """Return the measures by name, ten times as fast as `dataclasses.asdict`, which copies each of them deeply."""
        return dict(zip(MEASURES, _measures(self), strict=True))


# What the scan tells of videos "with" them.
OTHERS = "several streams of pictures, of which the one that players show is read"
CUT = "frames at the start that no player shows, since those that they refer to were cut off; they are not counted"
COUNTED = (
    "frames that cannot be found by their times; they are counted by decoding from the file's start, which takes longer the "
    "longer the film. Encode it as MP4 to mend that"
)
RESIZED = "frames of several sizes or shapes of pixels, all of which are scaled to the size at the start"
MEASURES = tuple(field.name for field in fields(Probe) if field.name != "notes")
_measures = attrgetter(*MEASURES)


def probe(path: MediaPath) -> Probe:
    """Measure a file; raise `ProbeError` for one that is empty, damaged or truncated, or has no frame.

    Raises what `storages.is_of_storage` as it is.
    """
    kind = kind_of(path.name)
    is_sound = formats.is_sound(path.name)
    if kind is None and not is_sound:
        raise ProbeError(why_not_read(path.name))
    try:
        if location.num_bytes(path) == 0:
            raise ProbeError("zero bytes")
        return _sound(path) if is_sound else _video(path) if kind == "video" else _picture(path)
    except ProbeError:
        raise
    except Exception as error:  # decoders raise nearly anything on damaged input
        if storages.is_of_storage(error):
            raise
        text = getattr(error, "strerror", None) or str(error) or type(error).__name__
        is_of_path = isinstance(error, FileNotFoundError | PermissionError)
        raise ProbeError(text if is_of_path else f"damaged: {text}") from error


def _video(path: MediaPath) -> Probe:
    with location.opened(path) as file:
        size = location.num_bytes(path)
        if (missing := stated_bytes(file, size) - size) > 0:
            raise ProbeError(f"truncated: the last {missing:,} bytes are missing")
        with video.opened(path, file) as opened:
            return _of_video(opened)


def _of_video(opened: OpenVideo) -> Probe:
    ratio, (height, width) = display.pixel_aspect_ratio(opened.stream), display.size(opened)
    packets, headers = Packets(), HeaderWatch(opened)
    noted = packets.noting(opened.container.demux(opened.stream), headers.see)
    frame = next(opened.frames(noted), None)
    deque(noted, maxlen=0)  # to the end of the file
    if frame is None:
        raise ProbeError("no frame can be decoded")
    if not frame_times.are_whole(opened, packets):
        raise ProbeError(f"damaged: packet {packets.corrupt[0]} is incomplete")
    times = frame_times.of_packets(opened, packets)
    tick, track = opened.stream.time_base or Fraction(1, 1000), video.sound_track(opened.container)
    stamps = times.ticks if times.timed else ()
    timing = measure(len(times.ticks), stamps, packets.last_duration, tick, times.declared_fps)
    components = frame.format.components
    return Probe(
        kind="video",
        num_frames=len(times.ticks),
        codec=opened.stream.codec_context.name,
        pixel_format=frame.format.name,
        bit_depth=max(component.bits for component in components),
        has_alpha=any(component.is_alpha for component in components),
        pixel_aspect_ratio=float(ratio),
        hidden_frames=times.hidden,
        interlaced=display.may_be_interlaced(opened.stream) or frame.interlaced_frame,
        color_matrix=display.matrix_name(frame),
        full_range=display.is_full_range(frame),
        hdr=display.stated_colors(frame).transfer,
        sound="" if track is None else track.codec_context.name,
        notes=_notes(opened, times, headers),
        **timing._asdict(),
        **_upright(display.orientation(frame), height, width),
    )


def _sound(path: MediaPath) -> Probe:
    with video.sound(path) as container:
        track = video.sound_track(container)
        if track is None:
            raise ProbeError("no sound that can be decoded")
        seconds = sum(frame.samples / frame.sample_rate for frame in container.decode(track))
        if not seconds:
            raise ProbeError("no sample can be decoded")
        codec = track.codec_context.name
    return Probe("sound", 1, 1, 1, duration_seconds=seconds, codec=codec, sound=codec)


def _notes(opened: OpenVideo, times: FrameTimes, headers: HeaderWatch) -> tuple[str, ...]:
    """Return what a person should know of a video."""
    facts = {
        OTHERS: opened.has_others,
        CUT: times.cut,
        COUNTED: not frame_times.have_order(opened, times),
        RESIZED: headers.has_other_sizes(opened),
    }
    return tuple(note for note, holds in facts.items() if holds)


# Streams that repeat their headers, and codecs whose headers FFmpeg finds in the packets of such streams.
_STREAMS = {"mpegts", "mpeg", "avi", "h264", "hevc", "mpegvideo"}
_WITH_HEADERS = {"h264", "hevc", "mpeg1video", "mpeg2video", "mpeg4", "vc1", "av1"}


class HeaderWatch:
    """Compares the headers of key frames, by which frames of several sizes or shapes of pixels are found.

    Players scale such frames to the size that the video has at its start, and so do scans and training.
    """

    def __init__(self, opened: OpenVideo) -> None:
        self._codec, self._first = opened.stream.codec_context.name, b""
        self._differs = False
        in_band = opened.container.format.name in _STREAMS and self._codec in _WITH_HEADERS
        self._filter = BitStreamFilterContext("extract_extradata", opened.stream) if in_band else None

    def see(self, packet: av.Packet[Any]) -> None:
        """Compare the header of a key frame's packet, if it has one."""
        if header := self._header(packet):
            self._first = self._first or header
            self._differs = self._differs or header != self._first

    def _header(self, packet: av.Packet[Any]) -> bytes:
        if self._codec == "vp8":  # RFC 6386, section 9.1
            return bytes(memoryview(packet)[3:10])
        if self._codec == "vp9":  # the uncompressed header, up to the size of the frame
            start = bytes(memoryview(packet)[1:9])
            return start[:7] + bytes([start[7] & 0xF0]) if len(start) == 8 else b""
        if self._filter is not None:
            copy = av.Packet(bytes(packet))  # the filter takes it
            copy.is_keyframe = True
            with suppress(av.error.InvalidDataError):  # as of H.264 that was copied from MP4 as it is
                packet = next(iter(self._filter.filter(copy)), packet)
        return bytes(packet.get_sidedata("new_extradata")) if packet.has_sidedata("new_extradata") else b""

    def has_other_sizes(self, opened: OpenVideo) -> bool:
        """Return whether frames have several sizes or shapes of pixels, for which all are decoded if headers differ."""
        if not self._differs:
            return False
        with video.opened(opened.path) as again:
            decoder = again.stream.codec_context
            return len({(frame.height, frame.width, decoder.sample_aspect_ratio) for frame in again.frames()}) > 1


def _upright(orientation: int, height: int, width: int) -> dict[str, Any]:
    """Return the measures that depend on an EXIF orientation, for a file of this stored size."""
    rotation = _CLOCKWISE.get(orientation, 0)
    if rotation % 180:
        height, width = width, height
    return {"height": height, "width": width, "rotation": rotation, "mirrored": orientation in _MIRRORED}


# Chunks of a PNG that pixels depend on, beside those that the first letter marks as needed.
_PIXEL_CHUNKS = (b"fcTL", b"fdAT", b"tRNS")
_CODED_PIXELS = {
    "JPEG": containers.jpeg_without_end,
    "MPO": containers.jpeg_without_end,
    "WEBP": containers.webp_chunks,
    "AVIF": containers.coded_items,
    "HEIF": containers.coded_items,
}


def _require_whole(file: BinaryIO) -> None:
    """Raise an error for a picture whose pixels are damaged where no decoder looks; other data in the file do not count.

    These are the checksums of PNG, and zeros at the end of pixels of JPEG, WebP, AVIF and HEIF whose copy was broken off when
    the file had its length already, which decoders take for pixels.
    """
    with pictures.picture(file) as image:
        kind, num_pixels = image.format, image.width * image.height
    if kind == "PNG":
        for name, length in containers.png_chunks(file):
            if name[:1].isupper() or name in _PIXEL_CHUNKS:
                content = file.read(length + 4)
                if len(content) == length + 4 and zlib.crc32(name + content[:-4]) != int.from_bytes(
                    content[-4:], "big"
                ):
                    raise ProbeError(f"damaged: a checksum of its {name.decode()} is wrong")
    elif kind in _CODED_PIXELS:
        for name, at, length in _CODED_PIXELS[kind](file):
            # WebP has some for flat parts: of encoders' settings, up to a byte for 72 pixels were seen, and for 3 if it is lossless.
            flat = num_pixels // (32 if name == b"VP8 " else 2) if kind == "WEBP" else 0
            file.seek(at)
            content = file.read(length)
            zeros = len(content) - len(content.rstrip(b"\0"))
            if zeros >= max(flat, 64):
                raise ProbeError(f"damaged: its pixels end with {zeros:,} zeros, as a copy that was broken off")
    file.seek(0)


def _picture(path: MediaPath) -> Probe:
    with location.opened(path) as f:
        _require_whole(f)
        return _of_picture(f)


def _of_picture(file: BinaryIO) -> Probe:
    with pictures.picture(file) as image:
        frames, milliseconds, has_alpha = pictures.shown_frames(image), [], False
        for number in frames:
            image.seek(number)
            image.load()  # reads to the end: a truncated picture opens without error and fails here
            milliseconds.append(pictures.frame_milliseconds(image))
            has_alpha |= pictures.is_transparent(image)
        orientation, timing = pictures.orientation(image), FrameTiming(0.0, 0.0, False)
        if len(frames) > 1:
            ticks = np.round(np.asarray(milliseconds) * 1000).astype(np.int64)
            timing = measure(len(ticks), np.cumsum(ticks) - ticks, int(ticks[-1]), Fraction(1, 1_000_000), None)
        return Probe(
            kind="video" if len(frames) > 1 else "image",
            num_frames=len(frames),
            codec=(image.format or "").lower(),
            pixel_format=image.mode,
            bit_depth=16 if image.mode.startswith("I;16") else 1 if image.mode == "1" else 8,
            has_alpha=has_alpha,
            pixel_aspect_ratio=1.0,
            hdr=pictures.stated_colors(image).transfer,
            icc_profile=pictures.profile_name(image),
            **timing._asdict(),
            **_upright(orientation, image.height, image.width),
        )
