"""Samplers for custom code: the model is a function of latents and timesteps, the result is clean latents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from reelworks.core.arguments import FLAG, checked, number, whole
from reelworks.core.errors import UserError
from reelworks.models.objectives import ddpm
from reelworks.models.objectives.samplers.diffusion import sample_ddim, sample_iddpm
from reelworks.models.objectives.samplers.flow import sample_flow

Model = Callable[[Tensor, Tensor], Tensor]
"""`model(latents [B, C, T, H, W], times [B])` returns the network's prediction; times in [0, 1000], float32."""


@checked(steps=whole(1), shift=number(above=0), guidance_scale=number())
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
        velocity: Model that predicts the velocity, with the condition.
        noise: `[B, C, T, H, W]` standard normal noise.
        steps: Number of Euler steps.
        shift: Ratio of the timestep shift for the shape, from `RectifiedFlow.shift_ratio`.
        guidance_scale: Strength of the condition; 1 is no guidance.
        unconditional: Model without the condition; needed for guidance only.

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


@checked(prediction=ddpm.PREDICTION, steps=whole(1, ddpm.NUM_STEPS), guidance_scale=number(), zero_terminal_snr=FLAG)
def ddim(
    model: Model,
    noise: Tensor,
    *,
    prediction: Literal["epsilon", "v"] = "epsilon",
    steps: int = 30,
    guidance_scale: float = 1.0,
    unconditional: Model | None = None,
    zero_terminal_snr: bool = False,
) -> Tensor:
    """Sample a model that predicts noise ("epsilon") or "v", trained on Stable Diffusion's 1000 steps.

    Args:
        model: Model that predicts noise or v, with the condition.
        noise: `[B, C, T, H, W]` standard normal noise.
        steps: Number of the 1000 steps to use: those that diffusers' `timestep_spacing="trailing"` takes.
        guidance_scale: Strength of the condition; 1 is no guidance.
        unconditional: Model without the condition; needed for guidance only.
        zero_terminal_snr: Whether the last of the 1000 steps was pure noise in training; needs v.

    Returns:
        `[B, C, T, H, W]` latents in the dtype of the noise.
    """
    if zero_terminal_snr and prediction != "v":
        raise UserError(
            "from pure noise, a model that predicts the noise tells nothing of the data",
            code="zero-snr-without-v",
            field="zero_terminal_snr",
            value=True,
            remedy='leave it out, or give prediction="v" for a model that predicts v',
        )
    both = _doubled(model, guidance_scale, unconditional)
    return sample_ddim(
        both, noise, prediction, num_steps=steps, guidance_scale=guidance_scale, zero_snr=zero_terminal_snr
    )


@checked(steps=whole(2, ddpm.NUM_STEPS), guidance_scale=number())
def iddpm(
    model: Model,
    noise: Tensor,
    *,
    steps: int = 100,
    guidance_scale: float = 1.0,
    unconditional: Model | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Sample a model that predicts noise with a learned variance, as in Open-Sora 1.1, by ancestral steps.

    Args:
        model: Model that predicts noise and variance, `[B, 2·C, T, H, W]`, with the condition.
        noise: `[B, C, T, H, W]` standard normal noise.
        steps: Number of the 1000 steps to use.
        guidance_scale: Strength of the condition; 1 is no guidance.
        unconditional: Model without the condition; needed for guidance only.
        generator: Random generator of the noise of each step.

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
    """Return a model of a doubled batch: the first half with the condition, the second without."""
    if guidance_scale != 1.0 and unconditional is None:
        raise UserError(
            "needs `unconditional`, the model without the condition",
            code="argument-invalid",
            field="guidance_scale",
            value=guidance_scale,
            remedy="give unconditional=…, or guidance_scale=1.0",
        )

    def both(z_2B: Tensor, t_2B: Tensor, _: Tensor | None) -> Tensor:
        (z, rest), (t, t_rest) = z_2B.chunk(2), t_2B.chunk(2)
        output = model(z, t)
        return torch.cat([output, output if unconditional is None else unconditional(rest, t_rest)])

    return both
