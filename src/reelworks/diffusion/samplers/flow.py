"""Sampling of rectified flow: Euler steps from noise to data with classifier-free guidance.

Legend: B clips, 2B the doubled batch (first half with the condition, second half without), C channels,
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
    """Frames of the input latents that are kept or edited.

    Attributes:
        ratio: `[B, T]` in [0, 1]: 1 generates a frame from noise, 0 keeps it, and a value between edits it,
            starting from the input with noise of timestep `1000 · ratio`.
        noise: `noise(step)` returns the `[B, C, T, H, W]` noise that is added to frames that start in this step.
    """

    ratio: Tensor
    noise: Callable[[int], Tensor]


def times(num_steps: int, shift: float | Tensor = 1.0) -> Tensor:
    """Return the shifted timesteps of all steps, from 1000 (noise) down to a final 0 (data), `[num_steps + 1]`."""
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
    """Integrate dz = v dt from noise to data, with one doubled batch per step.

    The guided velocity is v = v_uncond + guidance_scale · (v_cond − v_uncond).

    Args:
        velocity: The model of a doubled batch.
        noise_BCTHW: Standard normal noise to start from. With `edit`, frames of ratio below 1 contain
            the input latents instead.
        num_steps: Euler steps, at least 1.
        guidance_scale: Strength of the condition; 1 is no guidance.
        shift: Ratio of the timestep shift, from `diffusion.timesteps.shift_ratio`.
        edit: Frames to keep or edit; None generates all, and the model gets no frame mask.

    Returns:
        `[B, C, T, H, W]` latents in the dtype of the noise.
    """
    z = noise_BCTHW
    t = times(num_steps, shift).to(z.device)
    started_BT = None if edit is None else edit.ratio >= 1  # pure noise from the start
    for i in range(num_steps):
        now_BT = None
        if edit is not None and started_BT is not None:
            now_BT = edit.ratio * timesteps.NUM_TIMESTEPS >= t[i]
            z = _start(z, edit.noise(i), t[i], now_BT & ~started_BT)
            started_BT = now_BT | started_BT
        v = _guided(velocity, z, t[i], now_BT, guidance_scale).to(z.dtype)
        moved = z + v * ((t[i] - t[i + 1]) / timesteps.NUM_TIMESTEPS).to(z.dtype)
        z = moved if now_BT is None else torch.where(rectified_flow.per_frame(now_BT), moved, z)
    return z


def _start(z: Tensor, noise: Tensor, t: Tensor, new_BT: Tensor) -> Tensor:
    """Add the noise of timestep `t` to the frames that start at it."""
    blended = rectified_flow.noised(z, noise, t.expand(len(z)), new_BT)
    return blended.to(z.dtype)


def _guided(velocity: Velocity, z: Tensor, t: Tensor, mask_BT: Tensor | None, scale: float) -> Tensor:
    z_2B = torch.cat([z, z])
    mask_2B = None if mask_BT is None else torch.cat([mask_BT, mask_BT])
    cond, uncond = velocity(z_2B, t.expand(len(z_2B)), mask_2B).chunk(2)
    return uncond + scale * (cond - uncond)
