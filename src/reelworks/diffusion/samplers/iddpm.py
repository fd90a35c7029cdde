"""Ancestral sampling of diffusion with learned variance, with classifier-free guidance.

Legend: B clips, 2B the doubled batch (first half with the condition, second half without), C channels,
T latent frames, H height, W width.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from reelworks.diffusion import iddpm, rectified_flow
from reelworks.diffusion.samplers.flow import Edit, Network, check_steps, with_and_without


@torch.no_grad()
def sample_iddpm(
    network: Network,
    noise_BCTHW: Tensor,
    *,
    num_steps: int,
    guidance_scale: float,
    step_noise: Callable[[int], Tensor],
    edit: Edit | None = None,
) -> Tensor:
    """Return the latents drawn step by step from the posterior that the network predicts.

    Guidance applies to the predicted noise; the variance is that of the conditional prediction.

    Args:
        network: Model of a doubled batch, which learns the variance.
        noise_BCTHW: Standard normal noise to start from. With `edit`, frames of ratio below 1 contain
            the input latents instead.
        num_steps: Number of the 1000 steps to use, evenly spread.
        step_noise: `step_noise(step)` returns the `[B, C, T, H, W]` noise of a step.
        edit: Frames to keep or edit; None generates all, and the model gets no frame mask. Kept frames
            get the noise of the last step and are denoised in it, as in v1.1.

    Raises:
        UserError: `num_steps` is out of range.
    """
    check_steps(num_steps, 2, iddpm.NUM_STEPS, usual="50 to 250")
    plan, z = iddpm.schedule(num_steps), noise_BCTHW
    starts_BT = None if edit is None else (edit.ratio * num_steps).long()
    for step in range(num_steps):
        index_B = torch.full((len(z),), num_steps - 1 - step, device=z.device)
        mask_BT = None
        if edit is not None and starts_BT is not None:
            new_BT = rectified_flow.per_frame(starts_BT == index_B[:, None])
            z = torch.where(new_BT, iddpm.noised_at(plan, z, edit.noise(step), index_B), z)
            mask_BT = starts_BT > index_B[:, None]
        time_B = plan.steps.to(z.device)[index_B].float()
        both = with_and_without(network, z, time_B, mask_BT)
        (cond, fraction), (uncond, _) = (half.chunk(2, dim=1) for half in both)
        output = torch.cat([uncond + guidance_scale * (cond - uncond), fraction], dim=1)
        predicted = iddpm.posterior(plan, output, z, index_B)
        moved = predicted.mean
        if step < num_steps - 1:
            moved = moved + torch.exp(0.5 * predicted.log_variance) * step_noise(step)
        if starts_BT is not None:
            moved = torch.where(rectified_flow.per_frame(starts_BT >= index_B[:, None]), moved, z)
        z = moved
    return z
