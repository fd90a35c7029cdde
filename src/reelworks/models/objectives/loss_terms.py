"""Terms of a training loss: the distance of prediction and target and the weight of a timestep, by name, and preferences.

Noised latents are data · x0 + noise · ε. For rectified flow the factors are 1 − t/1000 and t/1000, for diffusion in
1000 steps the square roots of the variances; the signal-to-noise ratio (SNR) is (data / noise)². An error e of the
velocity or of v is an error noise · e of the clean sample, an error e of the noise one of (noise / data) · e. Weights
that their papers define for the clean sample's error, or for the noise's, are converted by these factors.

Legend: B clips, C channels, T latent frames, H height, W width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from reelworks.models.objectives.config import NUM_TIMESTEPS, ObjectiveConfig

Predicted = Literal["noise", "velocity"]

_SMALLEST_SIGMA = 1 / NUM_TIMESTEPS  # the smallest of the discrete ones for which sigma-sqrt was defined
_BELL_EDGE = math.exp(-0.5)
_BELL_MEAN = math.sqrt(math.pi / 2) * math.erf(math.sqrt(0.5)) - _BELL_EDGE


def distance(config: ObjectiveConfig, t_B: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the function that maps errors `[B, C, T, H, W]` of clips at some timesteps to the values that are averaged.

    Up to a bound δ, `huber` (Huber 1964) is half the square of the error, and beyond it δ · (|e| − δ / 2);
    `smooth-l1` is that divided by δ. An exponential schedule lets δ fall from 1 at timestep 0 to `huber_delta` at
    1000, as in Khrapov et al. 2024 (arXiv:2403.16728), since outliers harm where little of the data is left.
    """
    if config.loss == "mse":
        return torch.square
    delta_B = torch.full_like(t_B, config.huber_delta)
    if config.huber_schedule == "exponential":
        delta_B = delta_B ** (t_B / NUM_TIMESTEPS)
    delta = delta_B[:, None, None, None, None]

    def huber(error_BCTHW: Tensor) -> Tensor:
        size = error_BCTHW.abs()
        inside = torch.minimum(size, delta)
        value = 0.5 * inside.square() + delta * (size - inside)
        return value / delta if config.loss == "smooth-l1" else value

    return huber


def weights(config: ObjectiveConfig, data_B: Tensor, noise_B: Tensor, predicted: Predicted) -> Tensor | None:
    """Return the weight of each clip's loss by the factors of its data and noise, `[B]`; None if all weights are 1.

    `min-snr` (Hang et al. 2023, arXiv:2303.09556) gives the clean sample's error the weight min(SNR, γ), `debiased`
    (Yu et al. 2023, arXiv:2310.08442) √SNR. `sigma-sqrt` and `cosmap` are those of Esser et al. 2024
    (arXiv:2403.03206) in the implementation of diffusers: σ⁻² and 2 / (π · (1 − 2σ + 2σ²)), σ being the share of noise.
    `bell` is the weight with which DiffSynth-Studio trains Wan: exp(−2 · (σ − ½)²), moved to 0 at both ends and scaled
    to a mean of 1.
    """
    name = config.loss_weighting
    if name == "none":
        return None
    if name == "min-snr":
        if predicted == "noise":
            return (config.snr_gamma * (noise_B / data_B).square()).clamp(max=1)
        return torch.minimum(data_B.square(), config.snr_gamma * noise_B.square())
    if name == "debiased":
        return noise_B / data_B if predicted == "noise" else data_B * noise_B
    if name == "sigma-sqrt":
        return noise_B.clamp(min=_SMALLEST_SIGMA) ** -2
    if name == "cosmap":
        return 2 / (math.pi * (1 - 2 * noise_B + 2 * noise_B.square()))
    return ((-2 * (noise_B - 0.5).square()).exp() - _BELL_EDGE).clamp(min=0) / _BELL_MEAN


def dpo_loss(losses_2B: Tensor, reference_2B: Tensor, beta: float) -> Tensor:
    """Return the loss of each pair, `[B]`, for the mean squared errors L of the network and of the reference.

    Both hold those of the preferred clips w and, after them, those of the rejected ones l. The loss is
    `-log sigmoid(-beta / 2 * ((L_w - L_w_ref) - (L_l - L_l_ref)))`, which is log 2 for the reference itself: that of
    Diffusion-DPO (arXiv 2311.12908), and, with the velocity as the target, of Flow-DPO (arXiv 2501.13918) with a constant
    beta. A network is rewarded for a smaller error than a frozen reference has on the preferred clip, compared with the
    same difference on the rejected one; both clips have the same noise and timestep.
    """
    preferred_B, rejected_B = (losses_2B - reference_2B).chunk(2)
    return -functional.logsigmoid(-0.5 * beta * (preferred_B - rejected_B))
