"""Convert the planes of plain videos to RGB frames on the training device, as libswscale does in decoding processes.

    samples of Y, U, V  --weights across, then down-->  Y'CbCr of the crop  --matrix-->  RGB, rounded to 8 bits

Resizing is a product with a matrix for each axis (`media.resampling`), of which only the rows of the crop are computed. A
mirrored axis has its rows in reverse order.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from reelworks.core.shape import Shape
from reelworks.media.config import Resize
from reelworks.media.decode import Frames
from reelworks.media.planes import Layout, Planes
from reelworks.media.resampling import Axis

# Weights of red and blue in luma, by matrix; ITU-T H.273, table 4.
_LUMA = {
    "bt709": (0.2126, 0.0722),
    "bt601": (0.299, 0.114),
    "bt2020": (0.2627, 0.0593),
    "fcc": (0.30, 0.11),
    "smpte240m": (0.212, 0.087),
}
_HIGHEST = 32767 / 128  # libswscale keeps rows that are resized in 15 bits
_CHUNK_BYTES = 1 << 26  # of samples as floats that are converted at once


def to_device(clips: Sequence[Frames | Planes | None], shape: Shape, device: torch.device) -> Tensor:
    """Return the RGB frames `[B, T, H, W, 3]` of clips on a device, uint8; zeros where a clip is None.

    A clip's frames do not depend on the others. From pinned memory, copies go on while this process does other things.
    """
    frames = torch.zeros(len(clips), shape.num_frames, shape.height, shape.width, 3, dtype=torch.uint8, device=device)
    for own, clip in zip(frames, clips, strict=True):
        if isinstance(clip, Planes):
            _convert(_upload(clip.data, device), clip.layout, own)
        elif clip is not None:
            own.copy_(_upload(clip, device))
    return frames


def _upload(array: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], device: torch.device) -> Tensor:
    values = torch.from_numpy(array)
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values


@torch.no_grad()
def _convert(data: Tensor, layout: Layout, into: Tensor) -> None:
    """Convert rows of bytes `[T, bytes]` to frames `[T, H, W, 3]`."""
    if layout.is_turned:
        into = into.transpose(1, 2)
    samples = layout.axes[0][0].count * layout.axes[0][1].source + layout.frame_bytes
    step = max(_CHUNK_BYTES // (4 * samples), 1)
    for at in range(0, len(data), step):
        _to_rgb(_resized(data[at : at + step], layout), layout, into[at : at + step])


def _resized(data: Tensor, layout: Layout) -> list[Tensor]:
    """Return Y, U and V `[T, H, W]` float32 of the crop."""
    sizes, planes = layout.sizes, []
    parts = torch.split(data, [height * width for height, width in sizes], dim=1)
    for part, size, axes in zip(parts, sizes, layout.axes, strict=True):
        down, across = (
            _weights(axis, layout.resize, is_reversed, data.device)
            for axis, is_reversed in zip(axes, layout.is_reversed, strict=True)
        )
        planes.append(down @ (part.reshape(-1, *size).float() @ across.T).clamp_(max=_HIGHEST))
    return planes


def _to_rgb(planes: list[Tensor], layout: Layout, into: Tensor) -> None:
    y, u, v = planes
    red, blue = _LUMA[layout.matrix]
    green = 1 - red - blue
    black, luma_scale, chroma_scale = (0, 1.0, 1.0) if layout.full_range else (16, 255 / 219, 255 / 224)
    y, u, v = (y - black) * luma_scale, (u - 128) * chroma_scale, (v - 128) * chroma_scale
    b, r = y + 2 * (1 - blue) * u, y + 2 * (1 - red) * v
    for channel, values in enumerate((r, (y - red * r - blue * b) / green, b)):
        into[..., channel] = (values + 0.5).floor_().clamp_(0, 255)


@lru_cache(maxsize=24)  # four for each pair of sizes; crops that are drawn anew find none
def _weights(axis: Axis, resize: Resize, is_reversed: bool, device: torch.device) -> Tensor:
    matrix = axis.weights(resize)
    return torch.from_numpy(np.ascontiguousarray(matrix[::-1] if is_reversed else matrix)).to(device)
