"""Division of a plan's rows among ranks, and the share of time that ranks wait for each other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from reelworks.schedule.plan import EpochPlan, PlanSpec

I64 = NDArray[np.int64]


def columns(row: I64, rank: int, world: int) -> Iterator[tuple[int, bool]]:
    """Yield `(micro-batch, is filler)` for one rank, equally many for each rank.

    A rank without a column of its own runs the row's last micro-batch with weight 0, so that all ranks take part
    in the same collectives.
    """
    taken = row[row >= 0]
    for first in range(0, len(taken), world):
        own = first + rank
        yield (int(taken[own]), False) if own < len(taken) else (int(taken[-1]), True)


def waste(plan: EpochPlan, spec: PlanSpec, world: int) -> float:
    """Return the planned share of an epoch's time that ranks wait for the slowest one.

    Ranks synchronise after every micro-batch; a rank with a filler counts as waiting.
    """
    if not plan.steps:
        return 0.0
    costs = np.r_[plan.costs_us(spec), 0]
    width = -(-plan.rows.shape[1] // world) * world
    rows = np.full((plan.steps, width), -1, dtype=np.int64)
    rows[:, : plan.rows.shape[1]] = plan.rows
    per_column = costs[rows].reshape(plan.steps, -1, world)
    spent = per_column.max(axis=2).sum()
    return float(1 - per_column.mean(axis=2).sum() / spent) if spent else 0.0
