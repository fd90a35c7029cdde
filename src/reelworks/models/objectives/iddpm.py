"""Diffusion with a learned variance (Nichol and Dhariwal 2021) and the conventions of Open-Sora 1.1.

Noise is added in 1000 steps of linearly growing variance. The first half of the network's channels predicts the
noise, the second half interpolates the log variance of the reverse step between its two bounds.
Conditioning frames are not clean but have the noise of step 0.

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

from reelworks.models.objectives.rectified_flow import generated_only, mean_over_generated, per_frame

NUM_STEPS = 1000
_FIRST_BETA, _LAST_BETA = 1e-4, 0.02
_BIN = 1 / 255  # half the distance of adjacent 8-bit values in [-1, 1]
_EDGE = 0.999  # values beyond it belong to the outermost bins
_TINY = 1e-12


@dataclass(frozen=True)
class Schedule:
    """Noise schedule and the coefficients derived from it, `[N]` each, in float32 as in v1.1."""

    steps: Tensor  # selected steps of the 1000, ascending; these are the timesteps that the model receives
    betas: Tensor  # variance that each step adds
    share_kept: Tensor  # cumulative product of 1 − beta
    log_variance: Tensor  # log of the posterior's variance; the first, a variance of 0, is replaced by the second
    # mean_of_x0, mean_of_x_t: weights of the clean and of the noised sample in the posterior's mean
    mean_of_x0: Tensor
    mean_of_x_t: Tensor

    def at(self, name: str, index_B: Tensor) -> Tensor:
        """Return the named coefficients at these indices, shaped to broadcast over `[B, C, T, H, W]`."""
        table: Tensor = getattr(self, name)
        return table.to(index_B.device)[index_B][:, None, None, None, None]


class Posterior(NamedTuple):
    """Mean and log variance of the latents one step earlier, `[B, C, T, H, W]` each."""

    mean: Tensor
    log_variance: Tensor


@functools.cache
def schedule(num_steps: int = NUM_STEPS) -> Schedule:
    """Return the schedule of `num_steps` steps, spread evenly from the first to the last of the 1000."""
    exact = torch.linspace(_FIRST_BETA, _LAST_BETA, NUM_STEPS, dtype=torch.float64, device="cpu")
    stride = (NUM_STEPS - 1) / (num_steps - 1) if num_steps > 1 else 1.0
    steps = torch.tensor([round(i * stride) for i in range(num_steps)], dtype=torch.int64, device="cpu")
    if num_steps < NUM_STEPS:
        exact_kept = torch.cumprod(1 - exact, dim=0)[steps]
        exact = 1 - exact_kept / torch.cat([exact_kept.new_ones(1), exact_kept[:-1]])
    betas = exact.float()  # the derived coefficients are float32 too, as in the training of the published weights
    retained = torch.cumprod(1 - betas, dim=0)
    before = torch.cat([retained.new_ones(1), retained[:-1]])
    variance = betas * (1 - before) / (1 - retained)
    clipped = torch.cat([variance[1:2], variance[1:]]) if num_steps > 1 else betas
    return Schedule(
        steps,
        betas,
        retained,
        clipped.log(),
        betas * before.sqrt() / (1 - retained),
        (1 - before) * (1 - betas).sqrt() / (1 - retained),
    )


def noised_at(plan: Schedule, x0_BCTHW: Tensor, noise_BCTHW: Tensor, index_B: Tensor) -> Tensor:
    """Blend latents with the noise of a step of `plan`."""
    retained = plan.at("share_kept", index_B)
    return retained.sqrt() * x0_BCTHW + (1 - retained).sqrt() * noise_BCTHW


def noised(x0_BCTHW: Tensor, noise_BCTHW: Tensor, t_B: Tensor, frame_mask_BT: Tensor | None) -> Tensor:
    """Blend latents with noise at steps in [0, 999]; conditioning frames get the noise of step 0, which is small.

    Fractions of steps are rounded down, and 1000 counts as 999. Without a mask, no frame is a condition.
    """
    index_B = _index(t_B)
    x_t = noised_at(schedule(), x0_BCTHW, noise_BCTHW, index_B)
    if frame_mask_BT is None:
        return x_t
    condition = noised_at(schedule(), x0_BCTHW, noise_BCTHW, torch.zeros_like(index_B))
    return torch.where(per_frame(frame_mask_BT), x_t, condition)


def _index(t_B: Tensor) -> Tensor:
    return t_B.long().clamp(0, NUM_STEPS - 1)


def posterior(plan: Schedule, output: Tensor, x_t_BCTHW: Tensor, index_B: Tensor) -> Posterior:
    """Return the posterior one step earlier that the network's output implies, `[B, 2·C, T, H, W]`."""
    noise, fraction = output.chunk(2, dim=1)
    retained = plan.at("share_kept", index_B)
    x0 = (1 / retained).sqrt() * x_t_BCTHW - (1 / retained - 1).sqrt() * noise
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
    base: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the squared error of the noise and the variational bound in bits per dimension, `[B]` float32 each.

    The bound trains the variance only: the predicted noise is detached in it. With the output of a `base`, its noise and
    its posterior are the targets.
    """
    output = generated_only(output.float(), frame_mask_BT, weight_BTHW)
    x_t, x0 = x_t_BCTHW.float(), x0_BCTHW.float()
    noise, fraction = output.chunk(2, dim=1)
    plan, index_B = schedule(), _index(t_B)
    predicted = posterior(plan, torch.cat([noise.detach(), fraction], dim=1), x_t, index_B)
    if base is None:
        target = noise_BCTHW.float()
        true = Posterior(_mean(plan, x0, x_t, index_B), plan.at("log_variance", index_B))
        bound = torch.where(
            (index_B == 0)[:, None, None, None, None], -_log_likelihood(x0, predicted), _divergence(true, predicted)
        )
    else:
        base = generated_only(base.float(), frame_mask_BT, weight_BTHW)
        target, _ = base.chunk(2, dim=1)
        bound = _divergence(posterior(plan, base, x_t, index_B), predicted)
    mse_B = mean_over_generated((noise - target).square(), frame_mask_BT, weight_BTHW)
    return mse_B, mean_over_generated(bound, frame_mask_BT, weight_BTHW) / math.log(2)


def _divergence(true: Posterior, predicted: Posterior) -> Tensor:
    """Return the Kullback-Leibler divergence of two normal distributions."""
    difference = true.log_variance - predicted.log_variance
    spread = (true.mean - predicted.mean).square() * torch.exp(-predicted.log_variance)
    return 0.5 * (-1.0 - difference + difference.exp() + spread)


def _log_likelihood(x0: Tensor, predicted: Posterior) -> Tensor:
    """Return the log likelihood of the clean sample, discretised to 8 bits in [-1, 1], in the last reverse step."""
    centred, precision = x0 - predicted.mean, torch.exp(-0.5 * predicted.log_variance)
    below, above = (_normal_cdf(precision * (centred + offset)) for offset in (-_BIN, _BIN))
    log_inside = (above - below).clamp(min=_TINY).log()
    log_first, log_last = above.clamp(min=_TINY).log(), (1 - below).clamp(min=_TINY).log()
    return torch.where(x0 < -_EDGE, log_first, torch.where(x0 > _EDGE, log_last, log_inside))


def _normal_cdf(x: Tensor) -> Tensor:
    """Return the normal distribution function, approximated by a hyperbolic tangent as in v1.1."""
    return 0.5 * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
