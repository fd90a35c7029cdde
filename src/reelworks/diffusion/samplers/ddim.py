"""Deterministic sampling of diffusion (Song et al. 2021) with classifier-free guidance.

Legend: B clips, 2B the doubled batch (first half with the condition, second half without).
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from reelworks.core.errors import UserError
from reelworks.diffusion import ddpm
from reelworks.diffusion.samplers.iddpm import Network


@torch.no_grad()
def sample_ddim(
    network: Network, noise_BCTHW: Tensor, prediction: ddpm.Prediction, *, num_steps: int, guidance_scale: float
) -> Tensor:
    """Return the latents sampled from noise in evenly spread steps.

    Args:
        network: The model of a doubled batch.
        noise_BCTHW: Standard normal noise to start from.
        prediction: Whether the network predicts the noise or v.
        num_steps: Number of the 1000 steps to use.
        guidance_scale: Strength of the condition; 1 is no guidance.

    Returns:
        `[B, C, T, H, W]` latents.

    Raises:
        UserError: `num_steps` is out of range.
    """
    if not 1 <= num_steps <= ddpm.NUM_STEPS:
        raise UserError(
            f"the number of steps is not in [1, {ddpm.NUM_STEPS}]",
            code="steps-out-of-range",
            field="num_inference_steps",
            value=num_steps,
            remedy="use 20 to 50, as is usual",
        )
    z = noise_BCTHW
    times = torch.linspace(ddpm.NUM_STEPS - 1, 0, num_steps + 1).round()
    for now, after in itertools.pairwise(times):
        t_B = now.expand(len(z)).to(z.device)
        cond, uncond = network(torch.cat([z, z]), torch.cat([t_B, t_B]), None).chunk(2)
        clean, noise = ddpm.read(prediction, uncond + guidance_scale * (cond - uncond), z, t_B)
        data_weight, noise_weight = ddpm.weights(after.expand(len(z)).to(z.device))
        z = clean if after == 0 else data_weight * clean + noise_weight * noise
    return z
