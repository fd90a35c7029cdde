"""Diffusion with a learned variance (Nichol and Dhariwal 2021) with the conventions of Open-Sora 1.1.

Noise is added by 1000 steps of linearly growing variance. The network's first half of channels predicts
the noise, its second half where the variance of the way back lies between its two bounds, in the log.
Conditioning frames are not clean but carry the noise of step 0.

Legend: B clips, C channels, T latent frames, H height, W width, N steps. Frame masks are True where a
frame is generated and False where it is a condition.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from reelworks.diffusion.rectified_flow import generated_only, mean_over_generated, per_frame

NUM_STEPS = 1000
_FIRST_BETA, _LAST_BETA = 1e-4, 0.02
_BIN = 1 / 255  # half the distance of two values of 8 bits in [-1, 1]
_EDGE = 0.999  # values beyond it belong to the outermost bins
_TINY = 1e-12


@dataclass(frozen=True)
class Schedule:
    """How much noise each step has, and what follows from it; float32 throughout, as in v1.1.

    Attributes:
        steps: `[N]` steps of the 1000 that are taken, ascending: the model is told these.
        betas: `[N]` variance that each adds.
        share_kept: `[N]` product of all 1 − beta so far.
        log_variance: `[N]` log of the posterior's variance; the first, which is 0, counts as the second.
        mean_of_x0: `[N]` weight of the clean sample in the posterior's mean.
        mean_of_x_t: `[N]` weight of the noised sample in it.
    """

    steps: Tensor
    betas: Tensor
    share_kept: Tensor
    log_variance: Tensor
    mean_of_x0: Tensor
    mean_of_x_t: Tensor

    def at(self, name: str, index_B: Tensor) -> Tensor:
        """Look numbers up, shaped to broadcast over `[B, C, T, H, W]`."""
        table: Tensor = getattr(self, name)
        return table.to(index_B.device)[index_B][:, None, None, None, None]


class Posterior(NamedTuple):
    """Mean and log variance of the step before, `[B, C, T, H, W]` each."""

    mean: Tensor
    log_variance: Tensor


@functools.cache
def schedule(num_steps: int = NUM_STEPS) -> Schedule:
    """Spread `num_steps` evenly over the 1000, from the first to the last."""
    exact = torch.linspace(_FIRST_BETA, _LAST_BETA, NUM_STEPS, dtype=torch.float64)
    stride = (NUM_STEPS - 1) / (num_steps - 1) if num_steps > 1 else 1.0
    steps = torch.tensor([round(i * stride) for i in range(num_steps)])
    if num_steps < NUM_STEPS:
        exact_kept = torch.cumprod(1 - exact, dim=0)[steps]
        exact = 1 - exact_kept / torch.cat([exact_kept.new_ones(1), exact_kept[:-1]])
    betas = exact.float()  # and all that follows from them, as the published weights were trained
    kept = torch.cumprod(1 - betas, dim=0)
    before = torch.cat([kept.new_ones(1), kept[:-1]])
    variance = betas * (1 - before) / (1 - kept)
    clipped = torch.cat([variance[1:2], variance[1:]]) if num_steps > 1 else betas
    return Schedule(
        steps,
        betas,
        kept,
        clipped.log(),
        betas * before.sqrt() / (1 - kept),
        (1 - before) * (1 - betas).sqrt() / (1 - kept),
    )


def noised_at(plan: Schedule, x0_BCTHW: Tensor, noise_BCTHW: Tensor, index_B: Tensor) -> Tensor:
    """Blend latents with the noise of a step of `plan`."""
    kept = plan.at("share_kept", index_B)
    return kept.sqrt() * x0_BCTHW + (1 - kept).sqrt() * noise_BCTHW


def noised(x0_BCTHW: Tensor, noise_BCTHW: Tensor, t_B: Tensor, frame_mask_BT: Tensor | None) -> Tensor:
    """Blend latents with noise; conditioning frames get the little noise of step 0.

    Args:
        x0_BCTHW: Clean latents.
        noise_BCTHW: Standard normal noise.
        t_B: Steps in [0, 999]; a number between two counts as the lower, and 1000 as 999.
        frame_mask_BT: Which frames are generated; None means all.
    """
    index_B = _index(t_B)
    x_t = noised_at(schedule(), x0_BCTHW, noise_BCTHW, index_B)
    if frame_mask_BT is None:
        return x_t
    given = noised_at(schedule(), x0_BCTHW, noise_BCTHW, torch.zeros_like(index_B))
    return torch.where(per_frame(frame_mask_BT), x_t, given)


def _index(t_B: Tensor) -> Tensor:
    return t_B.long().clamp(0, NUM_STEPS - 1)


def posterior(plan: Schedule, output: Tensor, x_t_BCTHW: Tensor, index_B: Tensor) -> Posterior:
    """Compute the posterior of the step before from `output`, `[B, 2·C, T, H, W]`."""
    noise, fraction = output.chunk(2, dim=1)
    kept = plan.at("share_kept", index_B)
    x0 = (1 / kept).sqrt() * x_t_BCTHW - (1 / kept - 1).sqrt() * noise
    lowest, highest = plan.at("log_variance", index_B), plan.at("betas", index_B).log()
    share = (fraction + 1) / 2
    return Posterior(_mean(plan, x0, x_t_BCTHW, index_B), share * highest + (1 - share) * lowest)


def _mean(plan: Schedule, x0: Tensor, x_t: Tensor, index_B: Tensor) -> Tensor:
    return plan.at("mean_of_x0", index_B) * x0 + plan.at("mean_of_x_t", index_B) * x_t


def terms(
    output: Tensor,
    x_t_BCTHW: Tensor,
    x0_BCTHW: Tensor,
    noise_BCTHW: Tensor,
    t_B: Tensor,
    frame_mask_BT: Tensor | None,
    weight_BTHW: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Squared error of the noise and bound of the variance, in bits a number; `[B]` each, in float32.

    The bound teaches the variance alone: the predicted noise is taken as given in it.
    """
    output = generated_only(output.float(), frame_mask_BT, weight_BTHW)
    x_t, x0 = x_t_BCTHW.float(), x0_BCTHW.float()
    predicted, fraction = output.chunk(2, dim=1)
    error = predicted - noise_BCTHW.float()
    mse_B = mean_over_generated(error.square(), frame_mask_BT, weight_BTHW)
    plan, index_B = schedule(), _index(t_B)
    told = posterior(plan, torch.cat([predicted.detach(), fraction], dim=1), x_t, index_B)
    true = Posterior(_mean(plan, x0, x_t, index_B), plan.at("log_variance", index_B))
    bound = torch.where(
        (index_B == 0)[:, None, None, None, None], -_log_likelihood(x0, told), _divergence(true, told)
    )
    return mse_B, mean_over_generated(bound, frame_mask_BT, weight_BTHW) / math.log(2)


def _divergence(true: Posterior, told: Posterior) -> Tensor:
    """Kullback-Leibler divergence of two normal distributions."""
    difference = true.log_variance - told.log_variance
    spread = (true.mean - told.mean).square() * torch.exp(-told.log_variance)
    return 0.5 * (-1.0 - difference + difference.exp() + spread)


def _log_likelihood(x0: Tensor, told: Posterior) -> Tensor:
    """Log likelihood of values rounded to 8 bits in [-1, 1], as the last step back to them."""
    centred, precision = x0 - told.mean, torch.exp(-0.5 * told.log_variance)
    below, above = (_normal_cdf(precision * (centred + offset)) for offset in (-_BIN, _BIN))
    log_inside = (above - below).clamp(min=_TINY).log()
    log_first, log_last = above.clamp(min=_TINY).log(), (1 - below).clamp(min=_TINY).log()
    return torch.where(x0 < -_EDGE, log_first, torch.where(x0 > _EDGE, log_last, log_inside))


def _normal_cdf(x: Tensor) -> Tensor:
    """Distribution function of the normal, in the approximation by a hyperbolic tangent of v1.1."""
    return 0.5 * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
