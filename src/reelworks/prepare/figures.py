"""What plans come to: figures that add up over epochs, and what each bucket has of them."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelworks.schedule import ranks
from reelworks.schedule import weight as weighing
from reelworks.schedule.plan import EpochPlan, PlanSpec
from reelworks.schedule.weight import LossWeight

Json = dict[str, Any]
I64 = NDArray[np.int64]
F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Figures:
    """Sums over one or more epochs.

    Attributes:
        steps: Optimizer steps.
        clips: Showings that count, copies that pad left out.
        repeated: Those among them that fill micro-batches with clips shown before.
        tokens: What the model sees of them.
        micro_batches: All.
        incomplete: Micro-batches with fewer clips than the batch size.
        places: Clips and copies that pad.
        useful_us: What the clips cost a mean rank, copies that pad left out, in microseconds.
        busy_us: Planned work of a mean rank.
        spent_us: Planned time of every rank, waiting included.
    """

    steps: int = 0
    clips: int = 0
    repeated: int = 0
    tokens: int = 0
    micro_batches: int = 0
    incomplete: int = 0
    places: int = 0
    useful_us: float = 0.0
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
        """Share of time that trains nothing: waiting, and copies that pad."""
        return 1 - self.useful_us / self.spent_us if self.spent_us else 0.0

    def to_json(self) -> Json:
        """Counts and shares."""
        return {
            "steps": self.steps,
            "clips": self.clips,
            "repeated": self.repeated,
            "tokens": self.tokens,
            "micro_batches": self.micro_batches,
            "incomplete": self.incomplete,
            "imbalance": self.imbalance,
            "padding": self.padding,
            "waste": self.waste,
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
    costs = np.array(spec.costs_us, dtype=np.int64)
    busy = float(plan.costs_us(spec).sum()) / world
    return Figures(
        steps=plan.steps,
        clips=int(clips.sum()),
        repeated=plan.repeated,
        tokens=int((clips * tokens[bucket]).sum()),
        micro_batches=len(bucket),
        incomplete=int((plan.own_clips() < np.array(spec.batch_sizes, dtype=np.int64)[bucket]).sum()),
        places=len(plan.uid),
        useful_us=float((clips * costs[bucket]).sum()) / world,
        busy_us=busy,
        spent_us=busy / (1 - ranks.waste(plan, spec, world)),
    )


def micro_batches(plan: EpochPlan) -> tuple[I64, I64]:
    """Bucket of every micro-batch, and how many of its places count."""
    return plan.bucket[plan.offsets[:-1]].astype(np.int64), plan.counted(plan.real)


def gradient_weight(plan: EpochPlan, tokens: I64, loss_weight: LossWeight) -> F64:
    """What each bucket has in an epoch's gradients, in steps: the sum is the number of steps.

    Every step counts alike, and within a step its micro-batches do by the weight that `train.loss_weight`
    gives their clips.

    Args:
        plan: The epoch's plan.
        tokens: Per bucket, of one clip.
        loss_weight: What counts alike.
    """
    bucket, clips = micro_batches(plan)
    weight = clips * weighing.of_clip(loss_weight, tokens[bucket], clips)
    of_row = np.append(weight, 0.0)[plan.rows].sum(axis=1)
    there = plan.rows >= 0
    share = weight[plan.rows[there]] / np.repeat(of_row, there.sum(axis=1))
    summed: F64 = np.bincount(bucket[plan.rows[there]], share, minlength=len(tokens)).astype(np.float64)
    return summed
