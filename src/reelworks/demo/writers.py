"""Writers of good files: videos by PyAV, pictures by Pillow. The same scene always gives the same bytes."""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import av
import numpy as np
from av.video.stream import VideoStream
from PIL import Image, ImageDraw

from reelworks.core.arrays import Frames
from reelworks.core.errors import UserError
from reelworks.demo import scenes
from reelworks.demo.scenes import Picture, Video

# Fast presets and low quantisers: colours must survive, and file size hardly matters for clips this small.
# One thread each, so that an encoder gives the same bits every time.
_ENCODER_OPTIONS: dict[str, dict[str, str]] = {
    "libx264": {"preset": "ultrafast", "crf": "14"},
    "libx265": {"preset": "ultrafast", "crf": "14", "x265-params": "log-level=none:pools=none:frame-threads=1"},
    "libvpx-vp9": {"deadline": "realtime", "cpu-used": "8", "crf": "14", "b": "0"},
    # Presets above 8 leave ghosts of the moving shape; crf 8 gave streams that no decoder accepts.
    "libsvtav1": {"preset": "8", "crf": "18", "svtav1-params": "lp=1"},
}

# Offset of the matrix in a version 0 tkhd box from the box's name (ISO/IEC 14496-12, 8.3.2).
_TKHD_MATRIX_OFFSET = 44
_TKHD_MATRIX = struct.Struct(">9i")
_ONE_16_16, _ONE_2_30 = 1 << 16, 1 << 30

# Pillow's transpose on storing, which readers that honour the EXIF orientation undo.
_EXIF_ORIENTATION = 0x0112
_STORED_TURN = {3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}


def check_encoders(names: Iterable[str] = tuple(_ENCODER_OPTIONS)) -> None:
    """Refuse a build of PyAV that lacks one of these encoders."""
    missing = [name for name in names if name not in av.codecs_available]
    if missing:
        raise UserError(
            f"this build of PyAV has no encoder {', '.join(missing)}",
            code="encoder-missing",
            field="av",
            value=av.__version__,
            remedy="install the wheel from PyPI: pip install --force-reinstall --only-binary=av av",
        )


def write_video(path: Path, video: Video) -> None:
    """Encode a video; a rotation stores turned frames and a display matrix that turns them back."""
    scene, fmt = video.scene, video.format
    frames_THWC = np.rot90(scenes.frames(scene), fmt.rotation // 90, axes=(1, 2))
    height, width = frames_THWC.shape[1:3]
    # bitexact: no random ids or dates in the container.
    with _contained_svt(), av.open(str(path), "w", options={"fflags": "+bitexact"}) as container:
        stream = container.add_stream(fmt.codec, rate=scene.fps, options=dict(_ENCODER_OPTIONS[fmt.codec]))
        assert isinstance(stream, VideoStream)
        stream.width, stream.height, stream.pix_fmt = width, height, fmt.pix_fmt
        stream.thread_count = 1
        stream.codec_context.time_base = scene.time_base
        for pts, frame_HWC in zip(scene.pts, frames_THWC, strict=True):
            frame = _converted(frame_HWC, fmt.pix_fmt)
            frame.pts, frame.time_base = pts, scene.time_base
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    if fmt.rotation:
        path.write_bytes(_with_rotation(path.read_bytes(), fmt.rotation, width, height))


def _converted(frame_HWC: Frames, pix_fmt: str) -> av.VideoFrame:
    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame_HWC), format="rgb24")
    if pix_fmt == "yuv420p10le":
        # In one step, swscale's edge pixels would differ from call to call.
        frame = frame.reformat(format="yuv420p", threads=1)
    return frame.reformat(format=pix_fmt, threads=1)


def write_picture(path: Path, picture: Picture) -> None:
    """Write a picture in its format."""
    fmt = picture.format
    image = Image.fromarray(scenes.frames(picture.scene)[0])
    if fmt.mode == "RGBA":
        alpha, (width, height) = Image.new("L", image.size, 0), image.size
        # A window's screenshot is opaque except for rounded corners.
        ImageDraw.Draw(alpha).rounded_rectangle((0, 0, width - 1, height - 1), min(image.size) // 8, fill=255)
        image.putalpha(alpha)
    elif fmt.mode == "P":
        image = image.quantize(64, method=Image.Quantize.FASTOCTREE)
    exif = Image.Exif()
    if fmt.orientation != 1:
        image = image.transpose(_STORED_TURN[fmt.orientation])
        exif[_EXIF_ORIENTATION] = fmt.orientation
    if fmt.suffix == ".jpg":
        image.save(path, quality=95, subsampling=0, exif=exif)
    elif fmt.suffix == ".webp":
        image.save(path, quality=92)
    else:
        image.save(path)


def _with_rotation(data: bytes, degrees: int, width: int, height: int) -> bytes:
    """Set the display matrix of a file by FFmpeg with one track; degrees are clockwise, sizes the stored ones."""
    # (x', y') = (a·x + c·y + tx, b·x + d·y + ty); the translation brings the turned frame back to the origin.
    a, b, c, d, tx, ty = {
        90: (0, 1, -1, 0, height, 0),
        180: (-1, 0, 0, -1, width, height),
        270: (0, -1, 1, 0, 0, width),
    }[degrees]
    unit = _ONE_16_16
    matrix = (a * unit, b * unit, 0, c * unit, d * unit, 0, tx * unit, ty * unit, _ONE_2_30)
    at = data.index(b"tkhd", data.rindex(b"moov")) + _TKHD_MATRIX_OFFSET
    assert _TKHD_MATRIX.unpack_from(data, at) == (unit, 0, 0, 0, unit, 0, 0, 0, _ONE_2_30)
    return data[:at] + _TKHD_MATRIX.pack(*matrix) + data[at + _TKHD_MATRIX.size :]


@contextmanager
def _contained_svt() -> Iterator[None]:
    """Keep what SVT-AV1 does to its process within the block.

    It ignores FFmpeg's log level and reads its own from the environment. For root it gives real-time priority to the
    thread that calls it, and so to every thread which that one starts later: two of them that wait for a third by
    spinning would stop a machine of two cores for good.
    """
    before = os.environ.get("SVT_LOG")
    os.environ["SVT_LOG"] = "0"
    scheduled = (os.sched_getscheduler(0), os.sched_getparam(0)) if sys.platform == "linux" else None
    try:
        yield
    finally:
        if scheduled is not None:
            os.sched_setscheduler(0, *scheduled)
        if before is None:
            del os.environ["SVT_LOG"]
        else:
            os.environ["SVT_LOG"] = before
