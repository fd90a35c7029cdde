"""Videos of flat colours whose tags make players show them otherwise than they are stored."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

Planes = Sequence[NDArray[np.uint8] | NDArray[np.uint16]]


def write_planes(
    path: Path,
    frames: Sequence[Planes],
    *,
    codec: str = "ffv1",
    pixel_format: str = "yuv444p",
    tags: dict[str, int] | None = None,
    pixel_aspect_ratio: Fraction | None = None,
    display_matrix: Sequence[int] | None = None,
    options: dict[str, str] | None = None,
) -> Path:
    """Encode frames given as planes; `tags` are colorspace, color_range, color_trc and color_primaries."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=25, options=options or {})
        stream.height, stream.width = frames[0][0].shape
        stream.pix_fmt = pixel_format
        for name, value in (tags or {}).items():
            setattr(stream.codec_context, name, value)
        if pixel_aspect_ratio is not None:
            stream.codec_context.sample_aspect_ratio = pixel_aspect_ratio
        if display_matrix is not None:
            stream.set_display_matrix(display_matrix)
        for i, planes in enumerate(frames):
            frame = av.VideoFrame(stream.width, stream.height, pixel_format)
            for plane, values in zip(frame.planes, planes, strict=True):
                rows = np.zeros((plane.height, plane.line_size // values.itemsize), values.dtype)
                rows[:, : plane.width] = values
                plane.update(rows.tobytes())
            for name, value in (tags or {}).items():
                setattr(frame, name, value)
            frame.pts = i
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def flat(*values: int, size: tuple[int, int] = (32, 48), dtype: type[np.uint8] | type[np.uint16] = np.uint8) -> Planes:
    """Planes of one value each, all of this height and width."""
    return [np.full(size, value, dtype) for value in values]
