"""Sampling of rectified flow: Euler steps from noise to data with classifier-free guidance.

Legend: B clips, 2B the doubled batch (first half with the condition, second half without), C channels,
T latent frames, H height, W width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from reelworks.models.objectives import rectified_flow, timesteps
from reelworks.models.objectives.config import NUM_TIMESTEPS

Network = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""`network(z_2B, t_2B, frame_mask_2B)` predicts `[2B, C, T, H, W]`, or `2·C` channels if it learns the variance.

Times are float32, in [0, 1000] for a velocity and in [0, 999] for the steps of diffusion.
"""


JointNetwork = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""`network(z_2B, sound_2B, t_2B, sound_t_2B, frame_mask_2B)` predicts as `Network` does, for picture and sound."""


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
    index = torch.arange(num_steps, dtype=torch.float64, device="cpu")
    t = timesteps.shift((1 - index / num_steps) * NUM_TIMESTEPS, shift)
    return torch.cat([t, t.new_zeros(1)]).float()


def with_and_without(network: Network, z: Tensor, t_B: Tensor, mask_BT: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the predictions with the condition and without it, from one doubled batch."""
    mask_2B = None if mask_BT is None else torch.cat([mask_BT, mask_BT])
    cond, uncond = network(torch.cat([z, z]), torch.cat([t_B, t_B]), mask_2B).chunk(2)
    return cond, uncond


def guided_by_frames(velocity_2B: Tensor, without_both: Tensor, scale: float) -> Tensor:
    """Return velocities with and without the text, `[2B, C, T, H, W]`, that are guided by condition frames too.

    Guidance by the text then gives v = v_bare + scale · (v_frames − v_bare) + guidance_scale · (v_text − v_frames), as
    Open-Sora 2.0 samples: of text and frames, of frames alone, and of neither (`without_both`).
    """
    text, frames = velocity_2B.chunk(2)
    guided = without_both + scale * (frames - without_both)
    return torch.cat([guided + text - frames, guided])


def guided_at_length(velocity_2B: Tensor, scale: float, rule: str) -> Tensor:
    """Return guided velocities twice, `[2B, C, T, H, W]`, so that the sampler's guidance leaves them as they are.

    Each token of 2 × 2 elements gets the length that it has with the text ("kept"), as Qwen-Image's pipeline samples, or is
    shortened to it ("limited"), as LongCat-Image's does; by "rows" each row of a channel gets it, as Lumina 2's does.
    """
    text, bare = velocity_2B.float().chunk(2)
    guided = bare + scale * (text - bare)
    size = (1, 1, text.shape[-1]) if rule == "rows" else (1, 2, 2)
    squares = (v.square() if rule == "rows" else v.square().sum(1, keepdim=True) for v in (text, guided))
    of_text, of_guided = (F.avg_pool3d(square, size).sqrt() for square in squares)
    ratio = of_text / of_guided.clamp(min=1e-8)
    kept = guided * F.interpolate(ratio.clamp(max=1) if rule == "limited" else ratio, scale_factor=size)
    return torch.cat([kept, kept])


@torch.no_grad()
def sample_flow(
    velocity: Network,
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
        noise_BCTHW: Standard normal noise to start from. With `edit`, frames of ratio below 1 contain
            the input latents instead.
        shift: Ratio of the timestep shift, from `models.objectives.timesteps.shift_ratio`.
        edit: Frames to keep or edit; None generates all, and the model gets no frame mask.
    """
    z = noise_BCTHW
    t = times(num_steps, shift).to(z.device)
    started_BT = None if edit is None else edit.ratio >= 1  # pure noise from the start
    for i in range(num_steps):
        now_BT = None
        if edit is not None and started_BT is not None:
            now_BT = edit.ratio * NUM_TIMESTEPS >= t[i]
            z = rectified_flow.noised(z, edit.noise(i), t[i].expand(len(z)), now_BT & ~started_BT).to(z.dtype)
            started_BT = now_BT | started_BT
        cond, uncond = with_and_without(velocity, z, t[i].expand(len(z)), now_BT)
        v = (uncond + guidance_scale * (cond - uncond)).to(z.dtype)
        moved = z + v * ((t[i] - t[i + 1]) / NUM_TIMESTEPS).to(z.dtype)
        z = moved if now_BT is None else torch.where(rectified_flow.per_frame(now_BT), moved, z)
    return z


@torch.no_grad()
def sample_with_sound(
    velocity: JointNetwork,
    noise_BCTHW: Tensor,
    sound_noise_BFN11: Tensor,
    *,
    num_steps: int,
    guidance_scale: float,
    shift: float = 1.0,
    sound_shift: float | None = None,
    edit: Edit | None = None,
) -> tuple[Tensor, Tensor]:
    """Integrate picture and sound together as `sample_flow` does the picture, each with the steps of its own shift.

    Without `sound_shift`, timesteps of both are the same. `edit` is about the picture; all of the sound is generated.
    """
    own_shift = shift if sound_shift is None else sound_shift
    sound, t = sound_noise_BFN11, times(num_steps, own_shift).to(noise_BCTHW.device)
    steps = iter(range(num_steps))

    def picture(z_2B: Tensor, t_2B: Tensor, mask_2B: Tensor | None) -> Tensor:
        nonlocal sound
        i = next(steps)  # the picture's sampler calls once for each step
        out_2B, of_sound_2B = velocity(z_2B, torch.cat([sound, sound]), t_2B, t[i].expand_as(t_2B), mask_2B)
        cond, uncond = of_sound_2B.chunk(2)
        v = (uncond + guidance_scale * (cond - uncond)).to(sound.dtype)
        sound = sound + v * ((t[i] - t[i + 1]) / NUM_TIMESTEPS).to(sound.dtype)
        return out_2B

    z = sample_flow(picture, noise_BCTHW, num_steps=num_steps, guidance_scale=guidance_scale, shift=shift, edit=edit)
    return z, sound
