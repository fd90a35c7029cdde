"""Tiny real clips and pictures, for the tests of several packages."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray
from PIL import Image

GREY_STEP = 6  # greys of neighbouring frames; codecs err by less than half of it


def numbered(n: int, size: tuple[int, int] = (32, 32)) -> NDArray[np.uint8]:
    """Frames [n, H, W, 3] of a grey that counts; size is (height, width)."""
    greys = (20 + GREY_STEP * np.arange(n)).astype(np.uint8)
    return np.broadcast_to(greys[:, None, None, None], (n, *size, 3)).copy()


def numbers(frames: NDArray[np.uint8]) -> list[int]:
    """Which of the numbered frames these are."""
    greys = frames.reshape(len(frames), -1).astype(np.float64).mean(axis=1)
    return [round(float(number)) for number in (greys - 20) / GREY_STEP]


def write(
    path: Path,
    frames: Iterable[NDArray[np.uint8]],
    *,
    codec: str = "libx264",
    pixel_format: str = "yuv420p",
    rate: Fraction | int = 24,
    times_ms: Sequence[int] | None = None,
    options: dict[str, str] | None = None,
    container_options: dict[str, str] | None = None,
) -> Path:
    """Encode frames [H, W, 3 or 4] in a folder that is made if it is not there; `times_ms` makes the rate variable."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # The same bytes each time and everywhere, since clips are held out by their content: Matroska has random ids else, and
    # x264 writes its number of threads.
    options_of_container = {"fflags": "+bitexact"} | (container_options or {})
    with av.open(str(path), "w", options=options_of_container) as container:
        stream = container.add_stream(codec, rate=rate, options=options or {})
        stream.pix_fmt, stream.thread_count = pixel_format, 1
        if times_ms is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        for i, pixels in enumerate(frames):
            if i == 0:
                stream.height, stream.width = pixels.shape[:2]
            frame = av.VideoFrame.from_ndarray(pixels, format="rgba" if pixels.shape[2] == 4 else "rgb24")
            if times_ms is not None:
                frame.pts, frame.time_base = times_ms[i], Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def write_video(path: Path, *, num_frames: int = 8, size: tuple[int, int] = (64, 48), **encoding: Any) -> Path:
    """Encode frames of which only number and size, (width, height), matter; see `write`."""
    if encoding.get("codec") == "libx265":
        encoding["options"] = {"x265-params": "log-level=none"}
    return write(path, numbered(num_frames, size[::-1]), **encoding)


def write_picture(path: Path, value: int = 0, *, size: tuple[int, int] = (4, 3), mode: str = "RGB") -> Path:
    """Write a picture of one colour, and the folder that it lies in; size is (width, height)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value).save(path)
    return path


def rotate(path: Path, clockwise: int) -> None:
    """Write a rotation into the track header, as phones do; the frames stay as they are."""
    matrices = {90: (0, 1, -1, 0), 180: (-1, 0, 0, -1), 270: (0, -1, 1, 0)}
    set_matrix(path, *(value << 16 for value in matrices[clockwise]))


def set_matrix(path: Path, a: int, b: int, c: int, d: int) -> None:
    """Write a display matrix into the track header; the frames stay as they are."""
    data = bytearray(path.read_bytes())
    start = data.index(b"tkhd") + 44  # version and flags, times, ids, layer, volume
    data[start : start + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    path.write_bytes(data)


def hide_first_frames(source: Path, path: Path, num_frames: int) -> None:
    """Copy a clip with an edit list that starts later, as lossless cutters do."""
    options = {"avoid_negative_ts": "disabled"}
    with av.open(str(source)) as opened, av.open(str(path), "w", options=options) as container:
        stream = opened.streams.video[0]
        copied = container.add_stream_from_template(stream)
        step = int(1 / (stream.average_rate * stream.time_base))
        for packet in opened.demux(stream):
            if packet.dts is not None:
                packet.pts -= num_frames * step
                packet.dts -= num_frames * step
                packet.stream = copied
                container.mux(packet)


def decoded_frames(path: Path) -> int:
    """Frames that a decoder gives."""
    with av.open(str(path)) as container:
        return sum(1 for _ in container.decode(video=0))


def quarters(height: int, width: int) -> NDArray[np.uint8]:
    """A picture of four colours: red and green above, blue and white below."""
    picture = np.zeros((height, width, 3), dtype=np.uint8)
    h, w = height // 2, width // 2
    picture[:h, :w], picture[:h, w:] = (220, 20, 20), (20, 220, 20)
    picture[h:, :w], picture[h:, w:] = (20, 20, 220), (230, 230, 230)
    return picture


def differ(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> float:
    """Mean absolute difference in levels of 255."""
    return float(np.abs(first.astype(np.float64) - second.astype(np.float64)).mean())
