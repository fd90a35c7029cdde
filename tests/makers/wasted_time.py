"""Wasted time of a plan's steps for given costs, computed apart from the planner's own figures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reelworks.core.arrays import F64, I64


@dataclass(frozen=True)
class Waste:
    """Wasted shares of training time, in [0, 1].

    Attributes:
        same_step: 1 - mean of (mean / largest cost) over the micro-batches that run together: the time that
            ranks with a micro-batch wait for the slowest.
        in_all: 1 - cost of the clips / time of all ranks: waiting, ranks without a micro-batch and padding
            copies together.
    """

    same_step: float
    in_all: float


def measure(steps: I64, clips: I64, places: I64, clip_costs: F64, world: int) -> Waste:
    """Return the wasted time of a plan's steps.

    Args:
        steps: `[num_steps, G]` micro-batch indices, -1 for none.
        clips: Clips that each micro-batch trains.
        places: Clips and padding copies that each micro-batch runs.
        clip_costs: Cost of one clip of each micro-batch's bucket.
        world: Number of ranks, which synchronise after every `world` columns.
    """
    if not len(steps):
        return Waste(0.0, 0.0)
    together = _columns(steps, world)
    present = together >= 0
    costs = np.where(present, (places * clip_costs)[together], 0.0)
    largest = costs.max(axis=1)
    even = costs.sum(axis=1) / present.sum(axis=1) / largest
    useful = np.where(present, (clips * clip_costs)[together], 0.0).sum()
    return Waste(float(1 - even.mean()), float(1 - useful / (largest.sum() * world)))


def _columns(steps: I64, world: int) -> I64:
    """Return the micro-batches that run together, `[steps * columns, world]`, without empty columns."""
    width = -(-steps.shape[1] // world) * world
    padded = np.full((len(steps), width), -1, dtype=np.int64)
    padded[:, : steps.shape[1]] = steps
    together = padded.reshape(-1, world)
    return together[together[:, 0] >= 0]
