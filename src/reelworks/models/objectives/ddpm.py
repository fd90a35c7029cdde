"""Diffusion in 1000 steps (Ho et al. 2020) with the noise schedule of Stable Diffusion.

The square roots of the variances grow linearly. The network predicts the noise, or v = √a · noise − √(1 − a) · x0
(Salimans and Ho 2022), where a is the remaining share of the data's variance.

With `zero_snr`, the schedule is that of Lin et al. 2023 (arXiv:2305.08891): the square roots of a are moved and scaled so that
the last step is pure noise and the first one keeps its share. A predicted noise tells nothing of the data there; v does.

Legend: B clips, C channels, T latent frames, H height, W width. Frame masks are True where a frame is
generated and False where it is a condition.
"""

from __future__ import annotations

import functools
from typing import Literal, get_args

import torch
from torch import Tensor

from reelworks.core import arguments
from reelworks.models.objectives.rectified_flow import per_frame

NUM_STEPS = 1000
FIRST_BETA, LAST_BETA = 0.00085, 0.012
Prediction = Literal["epsilon", "v"]
PREDICTION = arguments.one_of(*get_args(Prediction))


@functools.cache
def share_kept(zero_snr: bool = False) -> Tensor:
    """Return the share of the data's variance that remains after each step, `[1000]` float32."""
    roots = torch.linspace(FIRST_BETA**0.5, LAST_BETA**0.5, NUM_STEPS, dtype=torch.float64, device="cpu")
    kept = torch.cumprod(1 - roots.square(), dim=0)
    if zero_snr:
        data = kept.sqrt()
        kept = ((data - data[-1]) * data[0] / (data[0] - data[-1])).square()
    return kept.float()


def weights(t_B: Tensor, zero_snr: bool = False) -> tuple[Tensor, Tensor]:
    """Return the factors of data and noise, shaped to broadcast over `[B, C, T, H, W]`."""
    kept_B = share_kept(zero_snr).to(t_B.device)[t_B.long().clamp(0, NUM_STEPS - 1)][:, None, None, None, None]
    return kept_B.sqrt(), (1 - kept_B).sqrt()


def noised(
    x0_BCTHW: Tensor, noise_BCTHW: Tensor, t_B: Tensor, frame_mask_BT: Tensor | None, zero_snr: bool = False
) -> Tensor:
    """Blend latents with noise at steps in [0, 999]; conditioning frames stay clean.

    Fractions of steps are rounded down, and 1000 counts as 999. Without a mask, no frame is a condition.
    """
    data, noise = weights(t_B, zero_snr)
    x_t = data * x0_BCTHW + noise * noise_BCTHW
    return x_t if frame_mask_BT is None else torch.where(per_frame(frame_mask_BT), x_t, x0_BCTHW)


def target(
    prediction: Prediction, x0_BCTHW: Tensor, noise_BCTHW: Tensor, t_B: Tensor, zero_snr: bool = False
) -> Tensor:
    """Return the network's target, the noise or v."""
    if prediction == "epsilon":
        return noise_BCTHW
    data, noise = weights(t_B, zero_snr)
    return data * noise_BCTHW - noise * x0_BCTHW


def read(
    prediction: Prediction, output: Tensor, x_t: Tensor, t_B: Tensor, zero_snr: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the clean latents and the noise that a prediction implies."""
    data, noise = weights(t_B, zero_snr)
    if prediction == "epsilon":
        return (x_t - noise * output) / data, output
    return data * x_t - noise * output, noise * x_t + data * output
