"""Deterministic sampling of diffusion (Song et al. 2021) with classifier-free guidance.

Legend: B clips, 2B the doubled batch (first half with its condition, second half without).
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
    network: Network,
    noise_BCTHW: Tensor,
    prediction: ddpm.Prediction,
    *,
    num_steps: int,
    guidance_scale: float,
) -> Tensor:
    """Go from noise to data over evenly spread steps, the last to clean latents.

    Args:
        network: The model; its first half of the batch is conditional, its second half is not.
        noise_BCTHW: Where to start, standard normal noise.
        prediction: What the network predicts.
        num_steps: Steps of the 1000 that are taken.
        guidance_scale: Strength of the condition; 1 is no guidance.

    Returns:
        `[B, C, T, H, W]` latents.

    Raises:
        UserError: There are not so many steps.
    """
    if not 1 <= num_steps <= ddpm.NUM_STEPS:
        raise UserError(
            f"not in [1, {ddpm.NUM_STEPS}]",
            code="steps-out-of-range",
            field="num_inference_steps",
            value=num_steps,
            remedy="use some 20 to 50",
        )
    z = noise_BCTHW
    times = torch.linspace(ddpm.NUM_STEPS - 1, 0, num_steps + 1).round()
    for now, after in itertools.pairwise(times):
        t_B = now.expand(len(z)).to(z.device)
        cond, uncond = network(torch.cat([z, z]), torch.cat([t_B, t_B]), None).chunk(2)
        clean, noise = ddpm.read(prediction, uncond + guidance_scale * (cond - uncond), z, t_B)
        kept, added = ddpm.weights(after.expand(len(z)).to(z.device))
        z = clean if after == 0 else kept * clean + added * noise
    return z
