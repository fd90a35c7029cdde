"""Deterministic sampling of diffusion (Song et al. 2021) with classifier-free guidance.

Legend: B clips, 2B the doubled batch (first half with the condition, second half without).
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from reelworks.diffusion import ddpm
from reelworks.diffusion.samplers.flow import Network, check_steps, with_and_without


@torch.no_grad()
def sample_ddim(
    network: Network, noise_BCTHW: Tensor, prediction: ddpm.Prediction, *, num_steps: int, guidance_scale: float
) -> Tensor:
    """Return the latents sampled from standard normal noise in `num_steps` evenly spread steps of the 1000.

    Raises:
        UserError: `num_steps` is out of range.
    """
    check_steps(num_steps, 1, ddpm.NUM_STEPS, usual="20 to 50")
    z = noise_BCTHW
    times = torch.linspace(ddpm.NUM_STEPS - 1, 0, num_steps + 1).round()
    for now, after in itertools.pairwise(times):
        t_B = now.expand(len(z)).to(z.device)
        cond, uncond = with_and_without(network, z, t_B)
        clean, noise = ddpm.read(prediction, uncond + guidance_scale * (cond - uncond), z, t_B)
        data_weight, noise_weight = ddpm.weights(after.expand(len(z)).to(z.device))
        z = clean if after == 0 else data_weight * clean + noise_weight * noise
    return z
