"""How much of the ranks' time a plan wastes, under any model of what a micro-batch costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Waste:
    """Shares of time, in [0, 1].

    Attributes:
        same_step: 1 - mean over steps of (mean / largest cost), over the micro-batches that run together:
            what ranks with work wait for the slowest.
        in_all: 1 - what the clips cost / what the ranks could have done meanwhile: waiting, ranks without a
            micro-batch of their own and copies that pad, together.
    """

    same_step: float
    in_all: float


def measure(rows: I64, clips: I64, places: I64, clip_costs: F64, world: int) -> Waste:
    """Measure a plan's rows.

    Args:
        rows: `[steps, G]` micro-batch indices, -1 where a row has none.
        clips: Clips that each micro-batch trains.
        places: What each micro-batch runs, copies that pad included.
        clip_costs: What a clip of each micro-batch's bucket costs.
        world: Ranks; they meet after every `world` columns.
    """
    if not len(rows):
        return Waste(0.0, 0.0)
    together = _columns(rows, world)
    there = together >= 0
    costs = np.where(there, (places * clip_costs)[together], 0.0)
    largest = costs.max(axis=1)
    even = costs.sum(axis=1) / there.sum(axis=1) / largest
    useful = np.where(there, (clips * clip_costs)[together], 0.0).sum()
    return Waste(float(1 - even.mean()), float(1 - useful / (largest.sum() * world)))


def _columns(rows: I64, world: int) -> I64:
    """The micro-batches that run together, `[steps * columns, world]`, empty ones left out."""
    width = -(-rows.shape[1] // world) * world
    padded = np.full((len(rows), width), -1, dtype=np.int64)
    padded[:, : rows.shape[1]] = rows
    together = padded.reshape(-1, world)
    return together[together[:, 0] >= 0]
