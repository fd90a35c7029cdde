"""Sampling of diffusion in steps: deterministic (Song et al. 2021), and ancestral with a learned variance.

Legend: B clips, 2B the doubled batch (first half with the condition, second half without), C channels,
T latent frames, H height, W width.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from reelworks.models.objectives import ddpm, iddpm, rectified_flow
from reelworks.models.objectives.config import require_steps
from reelworks.models.objectives.samplers.flow import Edit, Network, with_and_without


@torch.no_grad()
def sample_ddim(
    network: Network,
    noise_BCTHW: Tensor,
    prediction: ddpm.Prediction,
    *,
    num_steps: int,
    guidance_scale: float,
    zero_snr: bool = False,
) -> Tensor:
    """Return the latents sampled from standard normal noise in `num_steps` evenly spread steps of the 1000.

    They are those of diffusers' `timestep_spacing="trailing"`, from the last one down; each goes to the next, the last to no noise.
    """
    require_steps("epsilon", num_steps)
    z = noise_BCTHW
    # As numpy rounds them there, also where a step lies midway; for some numbers of steps it adds one below 0.
    spread = np.arange(ddpm.NUM_STEPS, 0, -ddpm.NUM_STEPS / num_steps)[:num_steps].round() - 1
    times = torch.tensor([*spread.tolist(), -1], dtype=torch.float32, device="cpu")
    for now, after in itertools.pairwise(times):
        t_B = now.expand(len(z)).to(z.device)
        cond, uncond = with_and_without(network, z, t_B)
        clean, noise = ddpm.read(prediction, uncond + guidance_scale * (cond - uncond), z, t_B, zero_snr)
        data_weight, noise_weight = ddpm.weights(after.clamp(min=0).expand(len(z)).to(z.device), zero_snr)
        z = (clean if after < 0 else data_weight * clean + noise_weight * noise).to(z.dtype)
    return z


@torch.no_grad()
def sample_iddpm(
    network: Network,
    noise_BCTHW: Tensor,
    *,
    num_steps: int,
    guidance_scale: float,
    step_noise: Callable[[int], Tensor],
    guided_channels: int | None = None,
    edit: Edit | None = None,
) -> Tensor:
    """Return the latents drawn step by step from the posterior that the network predicts.

    Guidance applies to the predicted noise; the variance is that of the conditional prediction.

    Args:
        noise_BCTHW: Standard normal noise to start from. With `edit`, frames of ratio below 1 contain
            the input latents instead.
        num_steps: Number of the 1000 steps to use, evenly spread.
        step_noise: `step_noise(step)` returns the `[B, C, T, H, W]` noise of a step.
        guided_channels: Number of latent channels, the first, to which guidance applies; None guides all. Open-Sora 1.1
            samples with 3 of its 4.
        edit: Frames to keep or edit; None generates all, and the model gets no frame mask. Kept frames
            get the noise of the last step and are denoised in it, as in v1.1.
    """
    require_steps("iddpm", num_steps)
    plan, z = iddpm.schedule(num_steps), noise_BCTHW
    guided = min(guided_channels or z.shape[1], z.shape[1])
    starts_BT = None if edit is None else (edit.ratio * num_steps).long()
    for step in range(num_steps):
        index_B = torch.full((len(z),), num_steps - 1 - step, dtype=torch.int64, device=z.device)
        mask_BT = None
        if edit is not None and starts_BT is not None:
            new_BT = rectified_flow.per_frame(starts_BT == index_B[:, None])
            z = torch.where(new_BT, iddpm.noised_at(plan, z, edit.noise(step), index_B), z)
            mask_BT = starts_BT > index_B[:, None]
        both = with_and_without(network, z, plan.steps.to(z.device)[index_B].float(), mask_BT)
        cond, uncond = (half[:, :guided] for half in both)
        output = torch.cat([uncond + guidance_scale * (cond - uncond), both[0][:, guided:]], dim=1)
        predicted = iddpm.posterior(plan, output, z, index_B)
        moved = predicted.mean
        if step < num_steps - 1:
            moved = moved + torch.exp(0.5 * predicted.log_variance) * step_noise(step)
        if starts_BT is not None:
            moved = torch.where(rectified_flow.per_frame(starts_BT >= index_B[:, None]), moved, z)
        z = moved.to(z.dtype)
    return z
