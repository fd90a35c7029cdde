"""What plans come to: figures that add up over epochs, and what each bucket has of them."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from reelworks.schedule import plan as planning
from reelworks.schedule.plan import EpochPlan, PlanSpec

Json = dict[str, Any]
I64 = NDArray[np.int64]
F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Figures:
    """Sums over one or more epochs.

    Attributes:
        steps: Optimizer steps.
        clips: Clips trained, repeats counted, copies that pad not.
        tokens: What the model sees of them.
        micro_batches: All.
        incomplete: Micro-batches with fewer clips than the batch size.
        places: Clips and copies that pad.
        busy_us: Planned work of a mean rank, in microseconds.
        spent_us: Planned time of every rank, waiting included.
    """

    steps: int = 0
    clips: int = 0
    tokens: int = 0
    micro_batches: int = 0
    incomplete: int = 0
    places: int = 0
    busy_us: float = 0.0
    spent_us: float = 0.0

    def __add__(self, other: Figures) -> Figures:
        return Figures(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    @property
    def imbalance(self) -> float:
        """Share of time in which ranks wait for the slowest."""
        return 1 - self.busy_us / self.spent_us if self.spent_us else 0.0

    @property
    def padding(self) -> float:
        """Share of places that carry weight 0."""
        return 1 - self.clips / self.places if self.places else 0.0

    @property
    def waste(self) -> float:
        """Share of places and time together that trains nothing."""
        return 1 - (1 - self.imbalance) * (1 - self.padding)

    def to_json(self) -> Json:
        """Counts and shares."""
        return {
            "steps": self.steps,
            "clips": self.clips,
            "tokens": self.tokens,
            "micro_batches": self.micro_batches,
            "incomplete": self.incomplete,
            "imbalance": self.imbalance,
            "padding": self.padding,
        }


def figures(plan: EpochPlan, spec: PlanSpec, tokens: I64, world: int) -> Figures:
    """Figures of one epoch.

    Args:
        plan: The epoch's plan.
        spec: What shaped it.
        tokens: Per bucket, of one clip.
        world: Ranks.
    """
    bucket, clips = micro_batches(plan)
    busy = float(plan.costs_us(spec).sum()) / world
    return Figures(
        steps=plan.steps,
        clips=int(clips.sum()),
        tokens=int((clips * tokens[bucket]).sum()),
        micro_batches=len(bucket),
        incomplete=int((clips < np.array(spec.batch_sizes, dtype=np.int64)[bucket]).sum()),
        places=len(plan.uid),
        busy_us=busy,
        spent_us=busy / (1 - planning.waste(plan, spec, world)),
    )


def micro_batches(plan: EpochPlan) -> tuple[I64, I64]:
    """Bucket and number of clips of every micro-batch."""
    starts = plan.offsets[:-1]
    before = np.concatenate([[0], np.cumsum(plan.real)]).astype(np.int64)
    return plan.bucket[starts].astype(np.int64), np.diff(before[plan.offsets])


def gradient_weight(
    plan: EpochPlan, tokens: I64, loss_weight: Literal["token", "sample", "micro_batch"]
) -> F64:
    """What each bucket has in an epoch's gradients, in steps: the sum is the number of steps.

    Every step counts alike, and within a step its micro-batches do by the weight that `train.loss_weight`
    gives their clips.

    Args:
        plan: The epoch's plan.
        tokens: Per bucket, of one clip.
        loss_weight: What counts alike.
    """
    bucket, clips = micro_batches(plan)
    weights = {"token": clips * tokens[bucket], "sample": clips, "micro_batch": np.ones_like(clips)}
    weight = weights[loss_weight].astype(np.float64)
    of_row = np.append(weight, 0.0)[plan.rows].sum(axis=1)
    there = plan.rows >= 0
    share = weight[plan.rows[there]] / np.repeat(of_row, there.sum(axis=1))
    summed: F64 = np.bincount(bucket[plan.rows[there]], share, minlength=len(tokens)).astype(np.float64)
    return summed
