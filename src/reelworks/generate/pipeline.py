"""Prompts to frames: the sampler, the model behind its boundary, and the encoders around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reelworks.core import draws
from reelworks.core.draws import Purpose
from reelworks.core.errors import UserError
from reelworks.core.shape import Shape
from reelworks.encode.live import LiveEncoder
from reelworks.generate import sampler
from reelworks.models.api import DenoiserInputs
from reelworks.objective import rectified_flow, timesteps
from reelworks.objective.config import ObjectiveConfig
from reelworks.precision.boundary import Boundary


@dataclass(frozen=True)
class GenerateOptions:
    """What to generate, beside the prompt.

    Attributes:
        shape: Frames, height and width in pixels.
        fps: Frames per second that the model is told.
        num_inference_steps: Euler steps.
        guidance_scale: 1 is no guidance.
        seed: Of the noise; each prompt has its own.
    """

    shape: Shape
    fps: float
    num_inference_steps: int
    guidance_scale: float
    seed: int


@torch.no_grad()
def generate(
    boundary: Boundary[DenoiserInputs],
    encoder: LiveEncoder,
    objective: ObjectiveConfig,
    prompts: Sequence[str],
    options: GenerateOptions,
) -> list[NDArray[np.uint8]]:
    """Generate a clip for each prompt.

    Returns:
        `[T, H, W, 3]` uint8 for each prompt, whatever the others are.

    Raises:
        UserError: The model does not take this shape.
    """
    _check_shape(options.shape, encoder)
    return [_one(boundary, encoder, objective, prompt, options) for prompt in prompts]


def _one(
    boundary: Boundary[DenoiserInputs],
    encoder: LiveEncoder,
    objective: ObjectiveConfig,
    prompt: str,
    options: GenerateOptions,
) -> NDArray[np.uint8]:
    shape, device = options.shape, encoder.device
    latent_shape = encoder.autoencoder.geometry.latent(shape)
    word = draws.hash_int(options.seed, prompt, Purpose.PREVIEW) >> 1
    generator = torch.Generator(device).manual_seed(word)
    noise = torch.randn(
        (1, encoder.autoencoder.latent_channels, *latent_shape), generator=generator, device=device
    )
    text, text_mask = encoder.texts([prompt])

    def velocity(z_2B: Tensor, t_2B: Tensor, frame_mask_2B: Tensor | None) -> Tensor:
        n = len(z_2B)
        frames = torch.ones(n, latent_shape[0], dtype=torch.bool, device=device)
        time = t_2B.float()
        output = boundary(
            DenoiserInputs(
                latent=z_2B,
                time=time,
                text=text.expand(n, -1, -1),
                text_mask=text_mask.expand(n, -1),
                frame_mask=frames if frame_mask_2B is None else frame_mask_2B,
                fps=torch.full((n,), options.fps, device=device),
                height=torch.full((n,), float(shape.height), device=device),
                width=torch.full((n,), float(shape.width), device=device),
                drop_text=torch.arange(n, device=device) >= n // 2,
            )
        )
        return rectified_flow.velocity_from(output, z_2B, time, objective.prediction)

    ratio = timesteps.shift_ratio(
        objective,
        height=shape.height,
        width=shape.width,
        num_frames=shape.num_frames,
        latent_frames=latent_shape[0],
    )
    latent = sampler.sample(
        velocity,
        noise,
        num_steps=options.num_inference_steps,
        guidance_scale=options.guidance_scale,
        shift=ratio,
    )
    return encoder.frames(latent, shape.num_frames)[0].cpu().numpy()


def _check_shape(shape: Shape, encoder: LiveEncoder) -> None:
    geometry = encoder.autoencoder.geometry
    for name, size, multiple in zip(
        ("--height", "--width"), (shape.height, shape.width), geometry.stride[1:], strict=True
    ):
        if size < multiple or size % multiple:
            near = max(round(size / multiple), 1) * multiple
            raise UserError(
                f"this autoencoder takes multiples of {multiple}",
                field=name,
                value=size,
                remedy=f"use {near}",
            )
    if not geometry.accepts_frames(shape.num_frames):
        a, b = geometry.frame_rule
        raise UserError(
            f"this model takes {a}n+{b} frames",
            field="--num-frames",
            value=shape.num_frames,
            remedy=f"use {max((shape.num_frames - b) // a, 0) * a + b}",
        )
