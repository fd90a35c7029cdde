"""Sampling of rectified flow: Euler steps from noise to data with classifier-free guidance.

Legend: B clips, 2B the doubled batch (first half with its condition, second half without), C channels,
T latent frames, H height, W width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from reelworks.diffusion import rectified_flow, timesteps

Velocity = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""`velocity(z_2B, t_2B, frame_mask_2B)` predicts `[2B, C, T, H, W]`; times in [0, 1000], float32."""


@dataclass(frozen=True)
class Edit:
    """Parts of given latents to keep.

    Attributes:
        ratio: `[B, T]` in [0, 1]: 1 generates a frame from noise, 0 keeps it, and a value between
            re-draws it from its given content, beginning at timestep `1000 · ratio`.
        noise: `noise(step)` gives the `[B, C, T, H, W]` noise of a step; it is added to frames that
            begin in that step.
    """

    ratio: Tensor
    noise: Callable[[int], Tensor]


def times(num_steps: int, shift: float | Tensor = 1.0) -> Tensor:
    """Shifted timesteps of the steps, from 1000 (noise) down, and 0 (data) as the end: `[num_steps + 1]`."""
    index = torch.arange(num_steps, dtype=torch.float64)
    t = timesteps.shift((1 - index / num_steps) * timesteps.NUM_TIMESTEPS, shift)
    return torch.cat([t, t.new_zeros(1)]).float()


@torch.no_grad()
def sample_flow(
    velocity: Velocity,
    noise_BCTHW: Tensor,
    *,
    num_steps: int,
    guidance_scale: float,
    shift: float = 1.0,
    edit: Edit | None = None,
) -> Tensor:
    """Integrate dz = v dt from noise to data, one doubled batch a step.

    The guided velocity is v = v_uncond + guidance_scale · (v_cond − v_uncond); 1 is no guidance.

    Args:
        velocity: The model; its first half of the batch is conditional, its second half is not.
        noise_BCTHW: Where to start, standard normal noise. With `edit`, frames of ratio below 1 hold
            the given latents instead.
        num_steps: Euler steps, at least 1.
        guidance_scale: Strength of the condition.
        shift: The ratio that `diffusion.timesteps.shift_ratio` gives for this shape.
        edit: Which frames are conditions; None generates all, and the model gets no frame mask.

    Returns:
        `[B, C, T, H, W]` latents in the dtype of the noise.
    """
    z = noise_BCTHW
    t = times(num_steps, shift).to(z.device)
    begun_BT = None if edit is None else edit.ratio >= 1  # pure noise from the start
    for i in range(num_steps):
        now_BT = None
        if edit is not None and begun_BT is not None:
            now_BT = edit.ratio * timesteps.NUM_TIMESTEPS >= t[i]
            z = _begin(z, edit.noise(i), t[i], now_BT & ~begun_BT)
            begun_BT = now_BT | begun_BT
        v = _guided(velocity, z, t[i], now_BT, guidance_scale).to(z.dtype)
        moved = z + v * ((t[i] - t[i + 1]) / timesteps.NUM_TIMESTEPS).to(z.dtype)
        z = moved if now_BT is None else torch.where(rectified_flow.per_frame(now_BT), moved, z)
    return z


def _begin(z: Tensor, noise: Tensor, t: Tensor, new_BT: Tensor) -> Tensor:
    """Noise the frames that begin at this time up to it."""
    blended = rectified_flow.noised(z, noise, t.expand(len(z)), new_BT)
    return blended.to(z.dtype)


def _guided(velocity: Velocity, z: Tensor, t: Tensor, mask_BT: Tensor | None, scale: float) -> Tensor:
    z_2B = torch.cat([z, z])
    mask_2B = None if mask_BT is None else torch.cat([mask_BT, mask_BT])
    cond, uncond = velocity(z_2B, t.expand(len(z_2B)), mask_2B).chunk(2)
    return uncond + scale * (cond - uncond)
