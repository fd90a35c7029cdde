"""Films of numbered frames that PyAV writes as people have them: out of order, cut, joined, of several streams."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from pathlib import Path

import av
import numbered_frames as drawn
import numpy as np
from numbered_frames import SIZE, Frame

Options = dict[str, str]
X264 = {"crf": "8", "preset": "veryfast", "g": "12", "keyint_min": "12"}
B3 = {**X264, "bf": "3", "b_strategy": "0"}
PLAIN = {**X264, "bf": "0"}
OPEN = {**B3, "x264-params": "open-gop=1:scenecut=0"}
QUALITY = {"qmin": "2", "qmax": "2", "g": "12", "sc_threshold": "1000000000"}
B2 = {**QUALITY, "bf": "2"}
X265 = "log-level=none:pools=1:frame-threads=1:keyint=12:min-keyint=12:scenecut=0:bframes=3"
HEVC_OPEN = {"crf": "8", "preset": "ultrafast", "x265-params": f"{X265}:open-gop=1"}


def write(
    path: Path,
    numbers: Iterable[int],
    codec: str = "libx264",
    options: Options | None = None,
    *,
    rate: Fraction | int = 24,
    milliseconds: Sequence[int] | None = None,
    size: tuple[int, int] = SIZE,
    pixel_format: str = "yuv420p",
    picture: Callable[[int], np.ndarray] | None = None,
    muxer: Options | None = None,
) -> Path:
    """Encode frames of these numbers, at a rate or at times of their own; `picture` draws others, `[H, W, 4]` with alpha."""
    with av.open(str(path), "w", options=muxer or {}) as container:
        stream = container.add_stream(codec, rate=rate, options=options or {})
        stream.width, stream.height, stream.pix_fmt = *size, pixel_format
        stream.codec_context.thread_count = 1
        base = Fraction(1, 1000) if milliseconds is not None else 1 / Fraction(rate)
        stream.codec_context.time_base = base
        for i, number in enumerate(numbers):
            pixels = drawn.frame(number, size) if picture is None else picture(number)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgba" if pixels.shape[2] == 4 else "rgb24")
            frame.pts, frame.time_base = i if milliseconds is None else milliseconds[i], base
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def copy(source: Path, path: Path, *, first: int = 0, times: Callable[[int, int], int] | None = None) -> Path:
    """Copy packets from one on without encoding; `times` gives each packet's time by its number and its own time."""
    with av.open(str(source)) as opened, av.open(str(path), "w") as container:
        stream = opened.streams.video[0]
        copied = container.add_stream_from_template(stream)
        packets = [packet for packet in opened.demux(stream) if packet.size]
        for number, packet in enumerate(packets[first:]):
            if times is not None:
                packet.pts = packet.dts = times(number, packet.pts)
            packet.stream = copied
            container.mux(packet)
    return path


def second_key(source: Path) -> int:
    """Return the number of the packet with which a decoder can begin, after that at the start."""
    with av.open(str(source)) as opened:
        keys = [i for i, packet in enumerate(opened.demux(video=0)) if packet.size and packet.is_keyframe]
    return keys[1]


def join(path: Path, *parts: Path) -> Path:
    """Put files behind each other, as `cat` does."""
    path.write_bytes(b"".join(part.read_bytes() for part in parts))
    return path


def together(path: Path, *parts: Path, defaults: Sequence[int] = ()) -> Path:
    """Put the films of several files into one, as streams in this order, some of which are marked as defaults."""
    from av.stream import Disposition

    opened = [av.open(str(part)) for part in parts]
    with av.open(str(path), "w") as container:
        streams = [each.streams.video[0] for each in opened]
        copies = [container.add_stream_from_template(stream) for stream in streams]
        for number, stream in enumerate(copies):
            stream.disposition = Disposition.default if number in defaults else Disposition(0)
        packets = [
            (float(packet.dts * packet.time_base), number, packet)
            for number, (each, stream) in enumerate(zip(opened, streams, strict=True))
            for packet in each.demux(stream)
            if packet.size
        ]
        for _, number, packet in sorted(packets, key=lambda one: one[:2]):
            packet.stream = copies[number]
            container.mux(packet)
    for each in opened:
        each.close()
    return path


def half_transparent(number: int) -> np.ndarray:
    """Draw a frame `[H, W, 4]` whose right half is half transparent, and its last quarter wholly."""
    shown = drawn.frame(number)
    alpha = np.full((*shown.shape[:2], 1), 255, np.uint8)
    alpha[:, SIZE[0] // 2 :], alpha[:, 7 * SIZE[0] // 8 :] = 128, 0
    return np.concatenate([shown, alpha], axis=2)


def cropped(
    left: int = 0, top: int = 0, right: int = 0, bottom: int = 0, quarters: int = 0
) -> Callable[[Frame], Frame]:
    """Return a view of frames: without these pixels, and turned clockwise."""

    def view(frame: Frame) -> Frame:
        height, width = frame.shape[:2]
        return drawn.turned(frame[top : height - bottom, left : width - right], quarters)

    return view
