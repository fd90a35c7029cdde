"""Diffusion in 1000 steps (Ho et al. 2020) with the noise schedule of Stable Diffusion.

The square roots of the variances grow linearly. The network predicts the noise, or v = √a · noise − √(1 − a) · x0
(Salimans and Ho 2022), where a is the remaining share of the data's variance.

Legend: B clips, C channels, T latent frames, H height, W width. Frame masks are True where a frame is
generated and False where it is a condition.
"""

from __future__ import annotations

import functools
from typing import Literal

import torch
from torch import Tensor

from reelworks.models.objectives.rectified_flow import per_frame

NUM_STEPS = 1000
FIRST_BETA, LAST_BETA = 0.00085, 0.012
Prediction = Literal["epsilon", "v"]


@functools.cache
def share_kept() -> Tensor:
    """Return the share of the data's variance that remains after each step, `[1000]` float32."""
    roots = torch.linspace(FIRST_BETA**0.5, LAST_BETA**0.5, NUM_STEPS, dtype=torch.float64)
    return torch.cumprod(1 - roots.square(), dim=0).float()


def weights(t_B: Tensor) -> tuple[Tensor, Tensor]:
    """Return the factors of data and noise, shaped to broadcast over `[B, C, T, H, W]`."""
    kept_B = share_kept().to(t_B.device)[t_B.long().clamp(0, NUM_STEPS - 1)][:, None, None, None, None]
    return kept_B.sqrt(), (1 - kept_B).sqrt()


def noised(x0_BCTHW: Tensor, noise_BCTHW: Tensor, t_B: Tensor, frame_mask_BT: Tensor | None) -> Tensor:
    """Blend latents with noise at steps in [0, 999]; conditioning frames stay clean.

    Fractions of steps are rounded down, and 1000 counts as 999. Without a mask, no frame is a condition.
    """
    data, noise = weights(t_B)
    x_t = data * x0_BCTHW + noise * noise_BCTHW
    return x_t if frame_mask_BT is None else torch.where(per_frame(frame_mask_BT), x_t, x0_BCTHW)


def target(prediction: Prediction, x0_BCTHW: Tensor, noise_BCTHW: Tensor, t_B: Tensor) -> Tensor:
    """Return the network's target, the noise or v."""
    if prediction == "epsilon":
        return noise_BCTHW
    data, noise = weights(t_B)
    return data * noise_BCTHW - noise * x0_BCTHW


def read(prediction: Prediction, output: Tensor, x_t: Tensor, t_B: Tensor) -> tuple[Tensor, Tensor]:
    """Return the clean latents and the noise that a prediction implies."""
    data, noise = weights(t_B)
    if prediction == "epsilon":
        return (x_t - noise * output) / data, output
    return data * x_t - noise * output, noise * x_t + data * output
