"""Sums of a step over micro-batches and ranks, and what each rank asks of all."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from reelworks.core import machine
from reelworks.data.distributed.mesh import World
from reelworks.data.loader import upload
from reelworks.models.objectives.config import NUM_TIMESTEPS
from reelworks.training.step.examples import KINDS

TIMESTEP_RANGES = 10  # of 100 timesteps each, in which losses are summed


class StepFlags(NamedTuple):
    """Requests of one rank to all ranks at the end of a step; a flag that one rank sets holds for all."""

    stop: bool  # save and stop training
    save: bool
    writing: bool  # do not publish the asynchronous save yet: this rank is still writing its shard
    stuck: bool = False  # do not take the step: clips cannot be read, for a reason that is not theirs


_COUNTS = 3 + len(StepFlags._fields)  # values of `StepSums.counts`


@dataclass(frozen=True, kw_only=True)
class StepTotals:
    """Sums of a step over all ranks, on the host.

    Attributes:
        clips, repeats: Number of clips that count: first uses of a clip, repeats that fill a micro-batch.
        failed: Number of clips that could not be decoded.
        flags: Requests of any rank.
        loss: Weighted mean over the clips that count; NaN if none did.
        has_finite_loss: False if the sum of the losses is not finite, whatever their weights.
        weight: Sum of their weights.
        loss_by_bucket: Mean loss by index of each bucket that had clips.
        loss_by_kind: Mean loss by index of the bucket and of the kind in `KINDS` that had clips.
        loss_by_range: Mean loss by index of each range of timesteps that had clips.
    """

    flags: StepFlags
    clips: int = 0
    repeats: int = 0
    failed: int = 0
    loss: float = math.nan
    has_finite_loss: bool = True
    weight: float = 0.0
    loss_by_bucket: dict[int, float] = field(default_factory=dict)
    loss_by_kind: dict[tuple[int, int], float] = field(default_factory=dict)
    loss_by_range: dict[int, float] = field(default_factory=dict)

    @classmethod
    def of_sums(cls, sums: StepSums) -> StepTotals:
        """Return the totals of sums over all ranks that are on the host."""
        clips, repeats, failed, *flag_counts = sums.counts.tolist()
        losses, weights = sums.by_kind.sum(dim=2).tolist()
        loss, weight = sum(losses), sum(weights)
        by_kind = _means(*sums.by_kind.flatten(1).tolist())
        return cls(
            clips=int(clips),
            repeats=int(repeats),
            failed=int(failed),
            flags=StepFlags(*(number > 0 for number in flag_counts)),
            loss=loss / weight if weight > 0 else math.nan,
            has_finite_loss=math.isfinite(loss),
            weight=weight,
            loss_by_bucket=_means(losses, weights),
            loss_by_kind={divmod(i, len(KINDS)): loss for i, loss in by_kind.items()},
            loss_by_range=_means(*sums.by_range.tolist()),
        )


@dataclass(frozen=True)
class StepSums:
    """Sums over the micro-batches of a step, in float64 on the device, first of one rank and then of all.

    `packed` has one after another: the numbers of clips that count (first uses, then repeats) and of failed ones; the
    number of ranks that set each of `StepFlags`; weighted losses and then weights of the clips that count, by bucket and
    kind; the same by range of timesteps.
    """

    packed: Tensor

    @classmethod
    def begin(cls, buckets: int, device: torch.device) -> StepSums:
        """Return sums of 0."""
        count = _COUNTS + 2 * (buckets * len(KINDS) + TIMESTEP_RANGES)
        return cls(torch.zeros(count, dtype=torch.float64, device=machine.exact_device(device)))

    @property
    def counts(self) -> Tensor:
        """The numbers of clips and of ranks."""
        return self.packed[:_COUNTS]

    @property
    def by_kind(self) -> Tensor:
        """`[2, buckets, kinds]` weighted losses, and weights."""
        return self.packed[_COUNTS : -2 * TIMESTEP_RANGES].view(2, -1, len(KINDS))

    @property
    def by_range(self) -> Tensor:
        """`[2, ranges]` weighted losses, and weights."""
        return self.packed[-2 * TIMESTEP_RANGES :].view(2, -1)

    @property
    def weight(self) -> Tensor:
        """Sum of the weights of all clips that count."""
        return self.by_kind[1].sum()

    def add(self, bucket: int, losses_B: Tensor, weights_B: Tensor, time_B: Tensor, kind_B: Tensor) -> None:
        """Add a micro-batch's weighted losses, its weights, timesteps and kinds, without waiting for the device."""
        # 1000, and what rounding might put beyond it, belongs to the last range.
        range_B = (time_B * (TIMESTEP_RANGES / NUM_TIMESTEPS)).long().clamp_(0, TIMESTEP_RANGES - 1)
        # Moved first, then converted, for devices without float64.
        device = self.packed.device
        both = torch.stack([losses_B, weights_B]).to(device).double()
        is_kind_KB = kind_B.to(device) == torch.arange(len(KINDS), device=device)[:, None]
        self.by_kind[:, bucket].add_(torch.where(is_kind_KB, both[:, None], 0.0).sum(dim=2))
        self.by_range.index_add_(1, range_B.to(device), both)

    def over_ranks(self, world: World, clips: tuple[int, int, int], flags: StepFlags) -> StepSums:
        """Return the sums over all ranks, with one all-reduce.

        Args:
            world: The ranks.
            clips: First uses, repeats and failed clips of this rank.
            flags: Requests of this rank.
        """
        numbers = torch.tensor([*clips, *flags], dtype=torch.float64)
        self.counts.copy_(upload.to_device(numbers, self.packed.device))
        return StepSums(world.sum(self.packed))

    def read(self, *others: Tensor) -> tuple[StepTotals, list[list[float]]]:
        """Copy the sums and other values to the host, in one transfer that waits for the device."""
        parts = [self.packed, *(other.reshape(-1).to(self.packed.device).double() for other in others)]
        own, *rest = torch.split(torch.cat(parts).cpu(), [len(part) for part in parts])
        return StepTotals.of_sums(StepSums(own)), [part.tolist() for part in rest]


def _means(losses: list[float], weights: list[float]) -> dict[int, float]:
    """Return the mean loss at each index that has a weight."""
    pairs = zip(losses, weights, strict=True)
    return {i: total / weight for i, (total, weight) in enumerate(pairs) if weight > 0}
