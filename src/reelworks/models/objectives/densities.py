"""Densities of timesteps by name, as quantile functions of uniform draws, and the shares below a timestep.

`logit-normal` is the sigmoid of a normal variable; `mode` is u − s · (sin²(π·u/2) − u), which for a scale s above 0
trains the middle more, and for s below 0 both ends; both are those of Esser et al. 2024 (arXiv:2403.03206), with the
draw u turned so that it increases. `beta` is the beta distribution. Timesteps are shares of noise in [0, 1] here.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reelworks.models.objectives.config import ObjectiveConfig

_CELLS = 1 << 14
_BISECTIONS = 60


def quantile(config: ObjectiveConfig, u_B: Tensor) -> Tensor:
    """Map draws in (0, 1), float64, to shares of noise in [0, 1]; increasing in the draw."""
    kind = config.timestep_sampling
    if kind == "logit-normal":
        return torch.sigmoid(config.logit_mean + config.logit_std * torch.special.ndtri(u_B))
    if kind == "mode":
        mode_B = u_B - config.mode_scale * (torch.sin(math.pi / 2 * u_B).square() - u_B)
        return mode_B.clamp(torch.finfo(torch.float32).tiny, 1)
    if kind == "beta":
        angle, below = _beta_table(config.beta_alpha, config.beta_beta)
        return torch.from_numpy(np.sin(np.interp(u_B.cpu().numpy(), below, angle)) ** 2).to(u_B.device)
    return u_B


def share_below(config: ObjectiveConfig, share: float) -> float:
    """Return the draw that `quantile` maps to a share of noise in (0, 1)."""
    kind = config.timestep_sampling
    if kind == "logit-normal":
        normal = (math.log(share / (1 - share)) - config.logit_mean) / config.logit_std
        return 0.5 * (1 + math.erf(normal / math.sqrt(2)))
    if kind == "mode":
        return _inverse_of_mode(share, config.mode_scale)
    if kind == "beta":
        angle, below = _beta_table(config.beta_alpha, config.beta_beta)
        return float(np.interp(math.asin(math.sqrt(share)), angle, below))
    return share


def _inverse_of_mode(share: float, scale: float) -> float:
    """Bisect, as the function has no inverse in closed form; it increases for the scales that a recipe may have."""
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if middle - scale * (math.sin(math.pi / 2 * middle) ** 2 - middle) < share:
            low = middle
        else:
            high = middle
    return (low + high) / 2


@functools.cache
def _beta_table(alpha: float, beta: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return angles θ from 0 to π/2 and the distribution function at sin²θ, each `[cells + 1]`.

    In the angle, the density is sin(θ)^(2α − 1) · cos(θ)^(2β − 1) times a constant: finite for α and β of ½ or more,
    where it is infinite in the share. Each cell is integrated by Gauss's rule with two points.
    """
    edges = np.linspace(0, math.pi / 2, _CELLS + 1)
    at = (edges[:-1, None] + edges[1:, None]) / 2 + np.array([-0.5, 0.5]) * (edges[1] - edges[0]) / math.sqrt(3)
    # By logarithms: large exponents would underflow.
    log_density = (2 * alpha - 1) * np.log(np.sin(at)) + (2 * beta - 1) * np.log(np.cos(at))
    below = np.concatenate([[0.0], np.cumsum(np.exp(log_density - log_density.max()).mean(axis=1))])
    return edges, below / below[-1]
