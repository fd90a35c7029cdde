"""Numbers of clips that ranks compute at the same time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reelworks.data.schedule.plan import I64, EpochPlan, columns


@dataclass(frozen=True)
class ForwardCounts:
    """Numbers of clips that all ranks compute at the same time with a network that takes a pass for each.

    Ranks exchange weights and gradients in each pass, and would wait for each other for ever if one had fewer.

    Attributes:
        columns: The most clips that a rank has in each column of the step; empty if it does not matter.
        ranks: Number of ranks, which have a micro-batch each of a column.
    """

    columns: tuple[int, ...]
    ranks: int

    @classmethod
    def from_step(cls, plan: EpochPlan, plan_step: int, ranks: int, parts: I64) -> ForwardCounts:
        """Return those of a step of the plan; `parts` are those of a column of each bucket."""
        sizes = -(-np.diff(plan.offsets) // parts[plan.bucket[plan.offsets[:-1]]])
        by_rank = [[int(sizes[i]) for i, _ in columns(plan.steps[plan_step], rank, ranks)] for rank in range(ranks)]
        return cls(tuple(map(max, zip(*by_rank, strict=True))), ranks)

    @property
    def most(self) -> int:
        """Clips of the largest column; 0 if it does not matter."""
        return max(self.columns, default=0)

    def min_batch_size(self, index: int) -> int:
        """Return how many clips to compute at least with a micro-batch of the step; 0 if it does not matter."""
        return self.columns[index // self.ranks] if self.columns else 0
