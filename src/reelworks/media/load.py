"""One file to frames of one exact shape."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.video.reformatter import Interpolation
from numpy.typing import NDArray
from PIL import Image, ImageOps

from reelworks.core.shape import Shape
from reelworks.media import sampling

Frames = NDArray[np.uint8]

# Accurate rounding: without it swscale's SIMD paths may round differently from its C path.
_RESIZE = Interpolation.BICUBIC | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT


class MediaError(Exception):
    """A file cannot give the frames that were asked of it; the message is the reason."""


@dataclass(frozen=True)
class Request:
    """What to read, with every choice already drawn.

    Attributes:
        path: The file.
        is_image: True for pictures.
        shape: Frames, height and width to return.
        step: Source frames from one used frame to the next.
        first_frame_draw: In [0, 1).
        crop_draw: In [0, 1), along height and along width; 0.5 is the centre.
    """

    path: Path
    is_image: bool
    shape: Shape
    step: float = 1.0
    first_frame_draw: float = 0.0
    crop_draw: tuple[float, float] = (0.5, 0.5)


def load(request: Request) -> Frames:
    """Read a clip or picture.

    Returns:
        `[T, H, W, 3]` uint8 RGB, as displayed: rotation metadata and EXIF orientation applied, alpha laid
        over white.

    Raises:
        MediaError: Missing, damaged, or with fewer frames than asked for.
    """
    try:
        frames = _load_image(request) if request.is_image else _load_video(request)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        # PyAV's errors are OSErrors or ValueErrors, and Pillow raises SyntaxError on a broken PNG.
        raise MediaError(f"{type(error).__name__}: {error}") from error
    expected = (request.shape.num_frames, request.shape.height, request.shape.width, 3)
    if frames.shape != expected:
        raise MediaError(f"gave frames {frames.shape}, not {expected}")
    return frames


def _load_image(request: Request) -> Frames:
    with Image.open(request.path) as opened:
        opened.load()
        image = ImageOps.exif_transpose(opened)
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", rgba.size, (255, 255, 255, 255)), rgba)
    image = image.convert("RGB")
    height, width = sampling.cover(image.height, image.width, request.shape.height, request.shape.width)
    if (width, height) != image.size:
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    return _crop(np.asarray(image), request)[None]


def _load_video(request: Request) -> Frames:
    with av.open(str(request.path), metadata_errors="replace") as container:
        if not container.streams.video:
            raise MediaError("no video stream")
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        times = _presentation_times(container, stream)
        if not times:
            raise MediaError("no frame")
        indices = sampling.frame_indices(
            len(times), request.shape.num_frames, request.step, request.first_frame_draw
        )
        if indices[-1] >= len(times):
            raise MediaError(f"{len(times)} frames are there, {int(indices[-1]) + 1} are needed")
        wanted = [times[i] for i in indices]
        container.seek(wanted[0], stream=stream, backward=True)
        return _collect(container, stream, wanted, request)


def _presentation_times(container: Any, stream: Any) -> list[int]:
    """Times of all frames, sorted, by reading packets alone: exact for variable rates too."""
    return sorted(p.pts for p in container.demux(stream) if p.pts is not None and not p.is_discard)


def _collect(container: Any, stream: Any, wanted: list[int], request: Request) -> Frames:
    found: dict[int, Frames] = {}
    missing = set(wanted)
    for frame in container.decode(stream):
        if frame.pts in missing:
            missing.discard(frame.pts)
            found[frame.pts] = _convert(frame, request)
        if not missing:
            break
    if missing:
        raise MediaError(f"{len(missing)} of {len(set(wanted))} frames could not be decoded")
    return np.stack([found[time] for time in wanted])


def _convert(frame: Any, request: Request) -> Frames:
    """Resize in one pass with the colour conversion, then turn and crop."""
    quarter_turns = round(frame.rotation / 90) % 4
    turned = quarter_turns % 2 == 1
    shown = (frame.width, frame.height) if turned else (frame.height, frame.width)
    height, width = sampling.cover(*shown, request.shape.height, request.shape.width)
    if turned:
        height, width = width, height
    rgb = frame.reformat(width=width, height=height, format="rgb24", interpolation=_RESIZE).to_ndarray()
    return _crop(np.rot90(rgb, quarter_turns), request)


def _crop(frame: Frames, request: Request) -> Frames:
    top = sampling.crop_offset(frame.shape[0], request.shape.height, request.crop_draw[0])
    left = sampling.crop_offset(frame.shape[1], request.shape.width, request.crop_draw[1])
    return frame[top : top + request.shape.height, left : left + request.shape.width]
