"""Tiny real files for the catalog's tests."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from PIL import Image


def write_video(
    path: Path,
    *,
    num_frames: int = 8,
    size: tuple[int, int] = (64, 48),
    rate: Fraction | int = 24,
    codec: str = "libx264",
    pixel_format: str = "yuv420p",
    times_ms: Sequence[int] | None = None,
    options: dict[str, str] | None = None,
) -> Path:
    """Encode grey frames of a size (width, height); `times_ms` makes the rate variable."""
    with av.open(str(path), "w", options=options or {}) as container:
        stream = container.add_stream(codec, rate=rate)
        stream.width, stream.height = size
        stream.pix_fmt = pixel_format
        if codec == "libx265":
            stream.options = {"x265-params": "log-level=none"}
        if times_ms is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        for i in range(num_frames):
            picture = np.full((size[1], size[0], 3), 20 * i % 256, dtype=np.uint8)
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            if times_ms is not None:
                frame.pts, frame.time_base = times_ms[i], Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def rotate_mp4(path: Path, clockwise: int) -> None:
    """Write a rotation into the track header, as phones do; the frames stay as they are."""
    matrices = {90: (0, 1, -1, 0), 180: (-1, 0, 0, -1), 270: (0, -1, 1, 0)}
    a, b, c, d = (value << 16 for value in matrices[clockwise])
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
    with av.open(str(path)) as container:
        return sum(1 for _ in container.decode(video=0))


def write_picture(path: Path, value: int = 0, *, size: tuple[int, int] = (4, 3), mode: str = "RGB") -> Path:
    Image.new(mode, size, value).save(path)
    return path
