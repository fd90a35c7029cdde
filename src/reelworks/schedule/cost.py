"""What one clip of each bucket costs, in whole microseconds so that every platform orders them alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from reelworks.schedule.config import CostConfig


def costs_us(
    names: Sequence[str], tokens: NDArray[np.int64], config: CostConfig, measured_ms: Mapping[str, float]
) -> tuple[int, ...]:
    """Cost of a clip of every bucket, at least a microsecond.

    Args:
        names: Of the buckets.
        tokens: Latent tokens of one clip, per bucket.
        config: The formula for buckets that were not measured.
        measured_ms: Milliseconds per clip by bucket; the formula is scaled to their median ratio.
    """
    n = tokens.astype(np.float64)
    formula = config.per_clip_us + config.per_token_us * n + config.per_token_squared_us * n * n
    known = np.array([measured_ms.get(name, np.nan) * 1000 for name in names])
    ratios = (known / np.maximum(formula, 1))[~np.isnan(known)]
    scaled = formula * (float(np.median(ratios)) if len(ratios) else 1.0)
    costs = np.where(np.isnan(known), scaled, known)
    return tuple(max(round(cost), 1) for cost in costs.tolist())
