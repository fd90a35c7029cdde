"""Decode plain videos with TorchCodec, an alternative to PyAV behind the same request.

PyAV still finds the frames, by their times, and tells whether a file is plain: 8 bits, YUV 4:2:0, upright, and with the matrix
that TorchCodec takes where none is stated. TorchCodec then decodes and converts to RGB, and frames are resized and cropped as
others are. They are the frames that PyAV gives, with less accurate chroma.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

from reelworks.catalog import display
from reelworks.catalog.location import MediaPath
from reelworks.core import user_files
from reelworks.core.errors import UserError
from reelworks.core.log import logger

_FORMATS = ("yuv420p", "yuvj420p")
_CHUNK_BYTES = 1 << 28  # of whole frames that are decoded at once


def require(decoder: str) -> None:
    """Check that the decoder that a recipe names can be used."""
    if decoder != "torchcodec":
        return
    try:
        import torchcodec.decoders  # noqa: F401
    except (ImportError, RuntimeError, OSError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(
            f"TorchCodec cannot be imported: {lines[0]}",
            code="torchcodec-not-usable",
            field="data.decoder",
            value=decoder,
            remedy="run: pip install 'reelworks[torchcodec]', and install FFmpeg's shared libraries (apt install ffmpeg); "
            'or set data.decoder = "pyav"',
        ) from None


def is_plain(frame: av.VideoFrame) -> bool:
    """Return whether TorchCodec shows frames like this one as PyAV does; raise `ProbeError` for colours that none reads."""
    return (
        frame.format.name in _FORMATS
        and not frame.interlaced_frame
        and not (display.hdr(frame) or display.is_wide_gamut(frame))
        and display.orientation(frame) == 1
        and (bool(display.matrix_name(frame)) or display.assumed_matrix(frame) is None)
    )


def frames_at(
    path: MediaPath, ticks: Sequence[int], tick_seconds: float, convert: Callable[[av.VideoFrame], NDArray[np.uint8]]
) -> list[NDArray[np.uint8]] | None:
    """Return what `convert` makes of the RGB frame at each time; None if TorchCodec does not find exactly these frames."""
    from torchcodec.decoders import VideoDecoder

    if isinstance(path, Path):
        user_files.require(path)  # its decoder opens the path
    source = path if isinstance(path, Path) else path.open()
    try:
        decoder = VideoDecoder(source, dimension_order="NHWC", num_ffmpeg_threads=1)
        step = max(_CHUNK_BYTES // (3 * decoder.metadata.height * decoder.metadata.width), 1)
        needed, converted = sorted(set(ticks)), {}
        for at in range(0, len(needed), step):
            seconds = np.array(needed[at : at + step]) * tick_seconds
            batch = decoder.get_frames_played_at((seconds + tick_seconds / 2).tolist())
            if np.abs(batch.pts_seconds.numpy() - seconds).max() > tick_seconds / 2:
                return None
            for tick, pixels in zip(needed[at:], batch.data.numpy(), strict=False):
                converted[tick] = convert(av.VideoFrame.from_ndarray(pixels, format="rgb24"))
    except (RuntimeError, ValueError, IndexError) as error:  # for times that it does not know, among others
        logger.debug("%s: left to PyAV (%s)", path, error)
        return None
    return [converted[tick] for tick in ticks]
