"""Samplers for a loop of one's own: the model is a function of latents and times, the result are clean latents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from reelworks.diffusion.samplers.ddim import sample_ddim
from reelworks.diffusion.samplers.flow import sample_flow
from reelworks.diffusion.samplers.iddpm import sample_iddpm

Model = Callable[[Tensor, Tensor], Tensor]
"""`model(latents [B, C, T, H, W], times [B])`: what the network predicts; times in [0, 1000], float32."""


def flow(
    velocity: Model,
    noise: Tensor,
    *,
    steps: int = 30,
    shift: float = 1.0,
    guidance_scale: float = 1.0,
    unconditional: Model | None = None,
) -> Tensor:
    """Sample rectified flow by Euler steps.

    Args:
        velocity: Predicts the velocity, with the condition.
        noise: `[B, C, T, H, W]`, standard normal.
        steps: Euler steps.
        shift: Ratio of the timestep shift, as `RectifiedFlow.shift_ratio` gives it for the shape.
        guidance_scale: Strength of the condition; 1 is no guidance.
        unconditional: Predicts the velocity without the condition; needed for guidance alone.

    Returns:
        `[B, C, T, H, W]` latents in the dtype of the noise.

    Examples:
        >>> import torch, reelworks as rw
        >>> target = torch.full((1, 4, 1, 2, 2), 3.0)
        >>> noise = torch.zeros_like(target)
        >>> rw.samplers.flow(lambda z, t: target - noise, noise, steps=4).mean()
        tensor(3.)
    """
    both = _doubled(velocity, guidance_scale, unconditional)
    return sample_flow(both, noise, num_steps=steps, guidance_scale=guidance_scale, shift=shift)


def ddim(
    model: Model,
    noise: Tensor,
    *,
    prediction: Literal["epsilon", "v"] = "epsilon",
    steps: int = 30,
    guidance_scale: float = 1.0,
    unconditional: Model | None = None,
) -> Tensor:
    """Sample a model of noise or v, trained on Stable Diffusion's 1000 steps.

    Args:
        model: Predicts noise or v, with the condition.
        noise: `[B, C, T, H, W]`, standard normal.
        prediction: What the model predicts.
        steps: Steps of the 1000 that are taken.
        guidance_scale: Strength of the condition; 1 is no guidance.
        unconditional: The same without the condition; needed for guidance alone.

    Returns:
        `[B, C, T, H, W]` latents in the dtype of the noise.
    """
    both = _doubled(model, guidance_scale, unconditional)
    return sample_ddim(both, noise, prediction, num_steps=steps, guidance_scale=guidance_scale)


def iddpm(
    model: Model,
    noise: Tensor,
    *,
    steps: int = 100,
    guidance_scale: float = 1.0,
    unconditional: Model | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Sample a model of noise with learned variance, as Open-Sora 1.1 has it, by ancestral steps.

    Args:
        model: Predicts `[B, 2·C, T, H, W]`: noise and variance, with the condition.
        noise: `[B, C, T, H, W]`, standard normal.
        steps: Steps of the 1000 that are taken.
        guidance_scale: Strength of the condition; 1 is no guidance.
        unconditional: The same without the condition; needed for guidance alone.
        generator: Draws the noise of each step.

    Returns:
        `[B, C, T, H, W]` latents in the dtype of the noise.
    """
    both = _doubled(model, guidance_scale, unconditional)

    def step_noise(step: int) -> Tensor:
        return torch.randn(noise.shape, generator=generator, device=noise.device, dtype=noise.dtype)

    return sample_iddpm(both, noise, num_steps=steps, guidance_scale=guidance_scale, step_noise=step_noise)


def _doubled(
    model: Model, guidance_scale: float, unconditional: Model | None
) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
    """A model of a doubled batch: the first half with its condition, the second without."""
    if guidance_scale != 1.0 and unconditional is None:
        raise ValueError(
            f"guidance_scale = {guidance_scale} needs unconditional, the model without its condition"
        )

    def both(z_2B: Tensor, t_2B: Tensor, _: Tensor | None) -> Tensor:
        (z, rest), (t, t_rest) = z_2B.chunk(2), t_2B.chunk(2)
        told = model(z, t)
        return torch.cat([told, told if unconditional is None else unconditional(rest, t_rest)])

    return both
