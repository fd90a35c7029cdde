"""Condition frames: frames that a clip begins with, and clips that continue each other.

They are not changed by sampling, and a mask marks them for the model as in training.

Legend: T frames, H height, W width, C channels, N latent frames.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reelworks.catalog import formats
from reelworks.core.errors import UserError
from reelworks.core.shape import Geometry, Shape
from reelworks.encoders.encoders import LiveEncoder
from reelworks.media import decode
from reelworks.media.decode import MediaError, Request
from reelworks.models.family import Conditioning

Frames = NDArray[np.uint8]
_LAST = math.nextafter(1.0, 0.0)  # as a draw in [0, 1): the last possible first frame


@dataclass(frozen=True)
class Conditions:
    """Condition frames of a generation."""

    reference: Frames | None = None  # `[T, H, W, 3]` uint8, which the clip begins with
    loop: int = 1  # clips to join; each but the first begins with the last frames of the previous one
    condition_frames: int = 17  # number of those last frames

    def check(self, geometry: Geometry, shape: Shape, conditioning: Conditioning) -> None:
        """Refuse condition frames that leave nothing to generate or whose latents do not fit those of the clip."""
        if conditioning.first_frame is not None and shape.num_frames > 1:
            self._check_first_frame()
            return
        if not conditioning.frames and (self.loop > 1 or self.reference is not None):
            raise UserError(
                "this model cannot continue frames: it takes no condition frames",
                code="conditions-not-taken",
                field="--reference, --loop",
                remedy="leave them out, or use a model that was trained with condition frames, such as stdit3",
            )
        if self.loop > 1:
            _check(self.condition_frames, geometry, shape, "--condition-frames")
        if self.reference is not None:
            _check(len(self.reference), geometry, shape, "--condition-frames, for --reference")

    def _check_first_frame(self) -> None:
        if self.reference is None:
            problem, remedy = "this model makes clips from their first frame", "name a picture for it"
        elif len(self.reference) > 1 or (self.loop > 1 and self.condition_frames > 1):
            problem, remedy = "this model takes only one condition frame", "add --condition-frames 1"
        else:
            return
        raise UserError(problem, code="condition-invalid", field="--reference", remedy=remedy)


def _check(num_frames: int, geometry: Geometry, shape: Shape, field: str) -> None:
    chunk = geometry.chunk_frames or 1
    if num_frames >= shape.num_frames:
        problem, remedy = f"nothing is left of {shape.num_frames} frames to generate", "give fewer frames"
    elif num_frames != 1 and num_frames % chunk:
        # A latent frame within a chunk covers other frames than one of a chunk of its own.
        problem, remedy = f"this autoencoder encodes {chunk} frames together", f"use 1 or {chunk}"
    else:
        return
    raise UserError(problem, code="condition-invalid", field=field, value=num_frames, remedy=remedy)


def read(path: Path, shape: Shape, condition_frames: int, option: str = "--reference") -> Frames:
    """Read a picture, or the last frames of a clip, resized to `shape`."""
    is_image = path.suffix.lower() in formats.IMAGE_EXTENSIONS
    wanted = Shape(1 if is_image else condition_frames, shape.height, shape.width)
    try:
        return decode.load(Request(path, is_image, wanted, first_frame_draw=_LAST))
    except MediaError as error:
        raise UserError(
            str(error),
            code="condition-unreadable",
            field=option,
            value=str(path),
            remedy=f"name a picture, or a clip of at least {condition_frames} frames (--condition-frames)"
            if condition_frames > 1
            else "name a picture or a clip",
        ) from error


def companions(files: Mapping[str, str], shape: Shape, prefix: str) -> dict[str, Frames]:
    """Read files of companions by kind, which options or keys with a prefix name."""
    return {kind: companion(Path(file), shape, prefix + kind.partition("-")[0]) for kind, file in files.items()}


def companion(path: Path, shape: Shape, option: str) -> Frames:
    """Read a picture, repeated for all frames, or a clip from its start, resized to `shape`."""
    is_image = path.suffix.lower() in formats.IMAGE_EXTENSIONS
    wanted = Shape(1, shape.height, shape.width) if is_image else shape
    try:
        frames = decode.load(Request(path, is_image, wanted))
    except MediaError as error:
        raise UserError(
            str(error),
            code="condition-unreadable",
            field=option,
            value=str(path),
            remedy="name a picture"
            + (f", or a clip of at least {shape.num_frames} frames" if shape.num_frames > 1 else ""),
        ) from error
    return np.repeat(frames, shape.num_frames, axis=0) if is_image else frames


def begin(encoder: LiveEncoder, noise_BCNHW: Tensor, frames_THWC: Frames) -> tuple[Tensor, Tensor]:
    """Put latents of condition frames in front of noise; also return `[B, N]`: 0 for them, 1 for those to generate."""
    condition_latents = encoder.latents(torch.from_numpy(np.array(frames_THWC))[None])
    count = condition_latents.shape[2]
    ratio_BN = torch.ones(len(noise_BCNHW), noise_BCNHW.shape[2], device=noise_BCNHW.device)
    ratio_BN[:, :count] = 0
    return torch.cat([condition_latents.to(noise_BCNHW.dtype), noise_BCNHW[:, :, count:]], dim=2), ratio_BN


def join(make: Callable[[Frames | None], Frames], conditions: Conditions) -> Frames:
    """Make clips one after the other and concatenate them without the frames that they share."""
    joined = make(conditions.reference)
    for _ in range(conditions.loop - 1):
        following = make(joined[-conditions.condition_frames :])
        joined = np.concatenate([joined, following[conditions.condition_frames :]])
    return joined
