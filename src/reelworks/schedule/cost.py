"""What one clip of each bucket costs, in whole numbers so that every platform orders them alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from reelworks.core.errors import UserError
from reelworks.schedule.config import CostConfig

_MOST_US = 86_400_000_000  # a day: ten million of these still add up in 64 bits
_FINER = 1000
_ROUNDING = 0.01  # what whole numbers may change of a ratio


def costs_us(
    names: Sequence[str], tokens: NDArray[np.int64], config: CostConfig, measured_ms: Mapping[str, float]
) -> tuple[int, ...]:
    """Cost of a clip of every bucket: microseconds, or a finer unit where these are too coarse to tell buckets apart.

    Args:
        names: Of the buckets.
        tokens: Latent tokens of one clip, per bucket.
        config: The formula for buckets that were not measured.
        measured_ms: Milliseconds per clip by bucket; the formula is scaled to their median ratio.

    Raises:
        UserError: A clip would take longer than a day.
    """
    n = tokens.astype(np.float64)
    known = np.array([measured_ms.get(name, np.nan) * 1000 for name in names])
    with np.errstate(all="ignore"):  # what is beyond all bounds is refused below
        formula = config.per_clip_us + config.per_token_us * n + config.per_token_squared_us * n * n
        ratios = (known / formula)[~np.isnan(known)]
        scaled = formula * (float(np.median(ratios)) if len(ratios) else 1.0)
    costs = np.where(np.isnan(known), scaled, known)
    for name, cost in zip(names, costs.tolist(), strict=True):
        if not cost <= _MOST_US:
            raise _too_long(name, cost, config)
    while (abs(costs.round() - costs) > _ROUNDING * costs).any() and costs.max(
        initial=0
    ) * _FINER <= _MOST_US:
        costs = costs * _FINER
    return tuple(max(round(cost), 1) for cost in costs.tolist())


def _too_long(name: str, cost_us: float, config: CostConfig) -> UserError:
    return UserError(
        f"one clip of {name} would take longer than a day",
        field="cost.measured" if config.measured else "cost",
        value=f"{cost_us / 1e6:.3g} seconds",
        remedy="lower the numbers: the formula is in microseconds, what was measured in milliseconds",
    )
