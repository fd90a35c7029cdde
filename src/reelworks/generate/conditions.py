"""Frames that are given: what a clip begins with, and how clips go on from each other.

Given frames stay as they are, and the model is told which they are, as it was in training.

Legend: T frames, H height, W width, C channels, N latent frames.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reelworks.catalog import probe
from reelworks.core.errors import UserError
from reelworks.core.shape import Geometry, Shape
from reelworks.encoders.encoders import LiveEncoder
from reelworks.media import decode
from reelworks.media.decode import MediaError, Request

Frames = NDArray[np.uint8]
_LAST = math.nextafter(1.0, 0.0)  # of the draws in [0, 1): the last place where a clip can begin


@dataclass(frozen=True)
class Conditions:
    """Frames and companions that are given.

    Attributes:
        reference: `[T, H, W, 3]` uint8 frames with which the clip begins; None gives nothing.
        loop: Clips that are joined; each but the first begins with the end of the one before.
        condition_frames: Frames of that end.
    """

    reference: Frames | None = None
    loop: int = 1
    condition_frames: int = 17

    def check(self, geometry: Geometry, shape: Shape, *, told: bool, first_frame: bool = False) -> None:
        """Refuse frames that leave nothing to generate, or whose latents would not fit those of the clip.

        Args:
            geometry: The autoencoder's.
            shape: Of a clip.
            told: The model is told which frames are given.
            first_frame: The model makes clips from their first frame, and from no more.

        Raises:
            UserError: Names the option.
        """
        if first_frame:
            self._check_first_frame()
            return
        if not told and (self.loop > 1 or self.reference is not None):
            raise UserError(
                "this model cannot be told which frames are given",
                code="conditions-not-taken",
                field="--reference, --loop",
                remedy="leave them out, or take a model that was trained with conditions, such as stdit3",
            )
        if self.loop > 1:
            _check(self.condition_frames, geometry, shape, "--condition-frames")
        if self.reference is not None:
            _check(len(self.reference), geometry, shape, "--condition-frames, for --reference")

    def _check_first_frame(self) -> None:
        if self.reference is None:
            problem, remedy = "this model makes clips from their first frame", "name a picture"
        elif len(self.reference) > 1 or (self.loop > 1 and self.condition_frames > 1):
            problem, remedy = "this model takes one frame to begin with", "add --condition-frames 1"
        else:
            return
        raise UserError(problem, code="condition-invalid", field="--reference", remedy=remedy)


def _check(given: int, geometry: Geometry, shape: Shape, field: str) -> None:
    chunk = geometry.chunk_frames or 1
    if given >= shape.num_frames:
        problem, remedy = f"nothing is left of {shape.num_frames} frames", "give fewer"
    elif given != 1 and given % chunk:
        # Elsewhere in a chunk, a latent frame stands for other frames than in one of its own.
        problem, remedy = f"this autoencoder encodes {chunk} frames together", f"use 1 or {chunk}"
    else:
        return
    raise UserError(problem, code="condition-invalid", field=field, value=given, remedy=remedy)


def read(path: Path, shape: Shape, condition_frames: int, option: str = "--reference") -> Frames:
    """Read a picture, or the last frames of a clip, at the size of `shape`.

    Raises:
        UserError: The file cannot be read, or has fewer frames.
    """
    is_image = path.suffix.lower() in probe.IMAGE_EXTENSIONS
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


def companion(path: Path, shape: Shape, option: str) -> Frames:
    """Read a picture, which then stands for all frames, or a clip from its start, at the size of `shape`.

    Raises:
        UserError: The file cannot be read, or has fewer frames.
    """
    is_image = path.suffix.lower() in probe.IMAGE_EXTENSIONS
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
    """Put the latents of given frames in front of noise.

    Returns:
        The latents to start from, and `[B, N]`: 0 where a latent frame is given, 1 where it is generated.
    """
    given = encoder.latents(torch.from_numpy(np.array(frames_THWC))[None])
    count = given.shape[2]
    ratio_BN = torch.ones(len(noise_BCNHW), noise_BCNHW.shape[2], device=noise_BCNHW.device)
    ratio_BN[:, :count] = 0
    return torch.cat([given.to(noise_BCNHW.dtype), noise_BCNHW[:, :, count:]], dim=2), ratio_BN


def join(make: Callable[[Frames | None], Frames], conditions: Conditions) -> Frames:
    """Make clips one after the other, and lay them end to end without the frames that they share."""
    joined = make(conditions.reference)
    for _ in range(conditions.loop - 1):
        following = make(joined[-conditions.condition_frames :])
        joined = np.concatenate([joined, following[conditions.condition_frames :]])
    return joined
