"""Prompts to frames: the sampler, the model behind its boundary, and the encoders around it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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

MAX_FPS = 240


@dataclass(frozen=True)
class GenerateOptions:
    """What to generate, beside the prompt.

    Attributes:
        shape: Frames, height and width in pixels.
        fps: Frames per second that the model is told.
        num_inference_steps: Euler steps.
        guidance_scale: 1 is no guidance.
        seed: Of the noise; each prompt has its own.

    Raises:
        UserError: `fps` or `guidance_scale` is not a number that a clip can be made with.
    """

    shape: Shape
    fps: float
    num_inference_steps: int
    guidance_scale: float
    seed: int

    def __post_init__(self) -> None:
        """Refuse what the model would turn into noise, or the writer into a broken file."""
        if not 0 < self.fps <= MAX_FPS:
            raise UserError(
                f"not in (0, {MAX_FPS}]", field="--fps", value=self.fps, remedy="use the footage's, e.g. 24"
            )
        if not math.isfinite(self.guidance_scale):
            raise UserError(
                "not a number to multiply by",
                field="--guidance-scale",
                value=self.guidance_scale,
                remedy="use 1 (no guidance) to some 10",
            )


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
        UserError: The model does not take this shape, or it does not fit into memory.
    """
    encoder.autoencoder.geometry.require(options.shape, ("--num-frames", "--height", "--width"))
    with _enough_memory(options.shape):
        return [_one(boundary, encoder, objective, prompt, options) for prompt in prompts]


@contextmanager
def _enough_memory(shape: Shape) -> Iterator[None]:
    """Tell a failed allocation as what it is: too large a shape."""
    try:
        yield
    except (MemoryError, RuntimeError, TypeError) as error:
        # torch has one class for its devices' memory; the host's is told by words, and so are sizes beyond
        # 64 bits, which never reach an allocator.
        told = any(word in str(error).lower() for word in ("alloc", "overflow"))
        if not (told or isinstance(error, torch.OutOfMemoryError | MemoryError)):
            raise
        reason = str(error).partition("\n")[0][:200]
        raise UserError(
            f"this does not fit into memory ({reason or 'the host has no more'})",
            field="--num-frames, --height, --width",
            value=str(shape),
            remedy="lower one of them",
        ) from error


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
