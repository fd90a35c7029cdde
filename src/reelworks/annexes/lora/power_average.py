"""Weights of checkpoints whose sum is an average over the whole training, chosen after it (arXiv 2312.02696).

Karras et al. average the weights θ(τ) of a training up to step T by a power of the step,

    θ_γ(T) = (γ + 1) / T^(γ + 1) · ∫ τ^γ θ(τ) dτ        from step 0 to T,

which in steps is the moving average with the decay (1 - 1/t)^(γ + 1) of step t, from 1. The deviation of the steps, as a share
of T, is σ_rel = (γ + 1)^½ (γ + 2)^-1 (γ + 3)^-½ (section 3.1). The shares of the steps in an average are its profile.

Of plain snapshots, each stands for the steps since the one before, and its weight is their share of the profile.
Of stored averages, the weights are those whose profiles together are nearest to the wanted one, by least squares over all
steps (section 3.2), with the sum 1. Profiles of the stored ones are those of `TrainState.update_ema`: the decay of step t, from
0, is min(ema_decay, (1 + t) / (10 + t)), which for short runs is a power function itself, with γ = 8.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np


class Combination(NamedTuple):
    """Weights of checkpoints, in their order, and how near their profile is to the wanted one.

    `profile_error` is the distance of the profiles as a share of the wanted one's norm; None for snapshots, which have none.
    """

    weights: list[float]
    profile_error: float | None


def gamma_of(sigma_rel: float) -> float:
    """Return the power γ of a relative standard deviation: the positive root of a cubic (their algorithm 2)."""
    inverse = sigma_rel**-2
    roots = np.roots([1, 7, 16 - inverse, 12 - inverse])
    return float(roots[np.isreal(roots)].real.max())


def of_snapshots(steps: Sequence[int], sigma_rel: float) -> Combination:
    """Return the weights of snapshots at ascending steps, each by its steps' share of the profile up to the last."""
    return Combination(np.diff((np.array([0, *steps]) / steps[-1]) ** (gamma_of(sigma_rel) + 1)).tolist(), None)


def of_averages(steps: Sequence[int], sigma_rel: float, decay: Callable[[int], float]) -> Combination:
    """Return the weights of stored averages at ascending steps, given `ema_decay` of each step, counted from 0."""
    power = gamma_of(sigma_rel) + 1
    products = np.zeros((len(steps), len(steps)))  # of two stored profiles, summed over steps
    wanted = np.zeros(len(steps))  # of a stored profile and the wanted one
    # Of one stored average, as it goes on: its product with itself, and with the wanted profile.
    own, cross, squares, shrunk = 1.0, 0.0, 0.0, []
    last, number, since = steps[-1], 0, 1.0
    for step in range(last):
        rate = min(decay(step), (1 + step) / (10 + step))
        share = ((step + 1) / last) ** power - (step / last) ** power
        own = rate * rate * own + (1 - rate) ** 2
        cross = rate * cross + (1 - rate) * share
        squares += share * share
        since *= rate
        if step + 1 == steps[number]:
            products[number, number], wanted[number] = own, cross
            shrunk.append(since)
            number, since = number + 1, 1.0
    # Up to its own step, a later average has the profile of an earlier one, shrunk since.
    for later in range(len(steps)):
        for earlier in range(later):
            factor = float(np.prod(shrunk[earlier + 1 : later + 1]))
            products[later, earlier] = products[earlier, later] = factor * products[earlier, earlier]
    weights = _nearest(products, wanted)
    distance = max(float(weights @ products @ weights - 2 * weights @ wanted + squares), 0.0)
    return Combination(weights.tolist(), (distance / squares) ** 0.5)


def _nearest(products: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the weights w of sum 1 with the smallest wᵀ P w - 2 wᵀ q: with a multiplier, a linear system."""
    count = len(wanted)
    scale = float(products.diagonal().mean())
    system, right = np.ones((count + 1, count + 1)), np.ones(count + 1)
    system[:count, :count], right[:count], system[count, count] = products / scale, wanted / scale, 0.0
    # Checkpoints of neighbouring steps are nearly alike: the solution with the smallest weights is taken.
    return np.linalg.lstsq(system, right, rcond=1e-10)[0][:count]
