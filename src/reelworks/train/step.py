"""One optimizer step: accumulate over micro-batches, weigh, sum over ranks, clip, update.

A rank with nothing but a filler still runs a real micro-batch, so that collectives match; its loss is
selected away, never multiplied by 0, since 0 · NaN is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from reelworks.buckets.table import BucketTable
from reelworks.core import hash_rng
from reelworks.core.hash_rng import Purpose
from reelworks.data.loader import MicroBatch, MicroBatchRequest
from reelworks.diffusion.config import ObjectiveConfig
from reelworks.distributed import mesh
from reelworks.distributed.mesh import World
from reelworks.encoders.encoders import LiveEncoder
from reelworks.models.api import DenoiserInputs
from reelworks.models.lora import inject
from reelworks.precision.boundary import DtypeBoundary
from reelworks.recipe.recipe import Recipe
from reelworks.schedule import cost
from reelworks.schedule.plan import EpochPlan
from reelworks.train import expert_choice, nonfinite
from reelworks.train.batch_inputs import Example, training_example
from reelworks.train.config import TrainConfig
from reelworks.train.lr_schedule import learning_rate
from reelworks.train.nonfinite import NonFiniteCandidates, NonFiniteCause
from reelworks.train.state import TrainState

_HEAD = 8


class StepFlags(NamedTuple):
    """Requests of a rank to all ranks at a step's edge; one rank's yes is everybody's.

    Attributes:
        stop: To save and leave.
        save: To save.
        writing: To wait: its part of the save in flight is not written yet.
    """

    stop: bool
    save: bool
    writing: bool


@dataclass(frozen=True)
class StepResult:
    """Result of a step, equal on all ranks.

    Attributes:
        applied: False if the step was skipped: no clip could be decoded, or a gradient was not finite.
        finite: False if the loss or a gradient was not finite.
        loss: Weighted mean over the clips of all ranks; NaN where there were none.
        loss_by_bucket: The same for each bucket that took part.
        grad_norm: Norm of the whole gradient before clipping.
        learning_rate: Used in this step, with the factor that an optimizer finds by itself.
        clips: Clips that counted, each once.
        repeated: Second and later showings that counted.
        failed: Clips that could not be decoded.
        votes: What any rank asked of all.
        on_demand: True if the recipe leaves the step out.
        blame: Of a step that is not finite, where that began.
    """

    applied: bool
    finite: bool
    loss: float
    loss_by_bucket: dict[int, float]
    grad_norm: float
    learning_rate: float
    clips: int
    repeated: int
    failed: int
    votes: StepFlags
    on_demand: bool = False
    blame: NonFiniteCause | None = None

    @property
    def why_not(self) -> str:
        """Why it was not applied."""
        if self.on_demand:
            return "train.skip_steps names it"
        if self.finite:
            return "no clip could be decoded"
        return f"loss or gradient is not finite, {self.blame}"

    @classmethod
    def skipped(cls, rate: float) -> StepResult:
        """Return the result of a step that the recipe leaves out."""
        # Ranks do not meet in it, so that each takes the others to be writing still.
        votes = StepFlags(stop=False, save=False, writing=True)
        return cls(False, True, math.nan, {}, math.nan, rate, 0, 0, 0, votes, on_demand=True)


@dataclass(frozen=True)
class TrainStep:
    """All that a step needs and does not change, beside the state that it does."""

    boundary: DtypeBoundary[DenoiserInputs]
    encoder: LiveEncoder
    state: TrainState
    table: BucketTable
    world: World
    recipe: Recipe

    @property
    def train(self) -> TrainConfig:
        """Settings of the optimizer."""
        return self.recipe.train

    def run(
        self, batches: Iterator[MicroBatch], plan: EpochPlan, row: int, step: int, votes: StepFlags
    ) -> StepResult:
        """Take one optimizer step.

        Args:
            batches: Source of this rank's micro-batches; those of the row are consumed.
            plan: The plan that holds the row.
            row: Which row.
            step: Optimizer steps done before this one.
            votes: What this rank asks of all.
        """
        planned = self.planned_weight(plan, row)
        sums = torch.zeros(_HEAD + 2 * len(self.table.buckets), dtype=torch.float64)
        sums[5:_HEAD] = torch.tensor(votes, dtype=torch.float64)
        rate = self.set_rate(step)
        self.state.optimizer.zero_grad()
        suspects = NonFiniteCandidates()
        objective = self._objective(plan, row, step)
        for batch in batches:
            mesh.set_gradient_sync(self.state.module, batch.work.last)
            self._micro_batch(batch, planned, sums, step, objective, suspects)
            if batch.work.last:
                break
        sums = self.world.sum(sums)
        return self._update(sums, planned, rate, step, objective, suspects)

    def set_rate(self, step: int) -> float:
        """Set the learning rate of the step after `step` done ones, and return it."""
        return self.state.optimizer.set_rate(learning_rate(self.train, step))

    def planned_weight(self, plan: EpochPlan, row: int) -> float:
        """Weight of a row over all ranks, known from the plan alone."""
        total = 0.0
        for micro_batch in plan.micro_batches(row).tolist():
            where = plan.places(micro_batch)
            total += (
                self._clip_weight(int(plan.bucket[where.start]), clips := int(plan.real[where].sum())) * clips
            )
        return total

    def _clip_weight(self, bucket: int, clips: int) -> float:
        """Return the loss weight of one clip of this bucket."""
        return float(cost.of_clip(self.train.loss_reduction, self.table.buckets[bucket].tokens, clips))

    def _objective(self, plan: EpochPlan, row: int, step: int) -> ObjectiveConfig:
        geometry = self.encoder.autoencoder.geometry
        return expert_choice.objective_of_step(self.recipe, self.table, geometry, plan, row, step)

    def _example(self, batch: MicroBatch, step: int, objective: ObjectiveConfig) -> Example:
        """Return the model's inputs, the same each time."""
        seed = self.recipe.seed
        example = training_example(batch, self.encoder, objective, seed=seed)
        # Randomness inside the model, if it has any, is a function of the place, not of history.
        torch.manual_seed(hash_rng.hash_int(seed, step, batch.work.index, Purpose.MODEL) >> 1)
        return example

    def _micro_batch(
        self,
        batch: MicroBatch,
        planned: float,
        sums: Tensor,
        step: int,
        objective: ObjectiveConfig,
        suspects: NonFiniteCandidates,
    ) -> None:
        work, example = batch.work, self._example(batch, step, objective)
        losses = self._losses(work, example, objective)
        weight = torch.full_like(losses, self._clip_weight(work.bucket, int(work.real.sum())))
        if self.train.loss_reduction == "token":
            weight = weight * example.generated
        zero = losses.new_zeros(())
        weight = torch.where(example.counts, weight, zero)
        weighted = torch.where(example.counts, weight * losses, zero).sum()
        # FSDP takes the mean over ranks; the loss of a step is a sum over them.
        torch.autograd.backward(weighted * (self.world.size / planned))
        loss_sum, weight_sum = float(weighted.detach()), float(weight.sum())
        suspects.observe(batch, losses, example.counts, loss_sum)
        sums[0] += loss_sum
        sums[1] += weight_sum
        counted, first = batch.counts.numpy(), work.first
        sums[2] += int((counted & first).sum())
        sums[3] += int((counted & ~first).sum())
        sums[4] += batch.failed
        sums[_HEAD + work.bucket] += loss_sum
        sums[_HEAD + len(self.table.buckets) + work.bucket] += weight_sum

    def _losses(self, work: MicroBatchRequest, example: Example, objective: ObjectiveConfig) -> Tensor:
        """Loss of every clip: how far it is from what is there, or from what the base says."""
        base = None
        # On all ranks together: weights in shards are gathered by all or none.
        if any(d.prior_prediction for d in self.recipe.dataset):
            with torch.no_grad(), inject.without(self.state.module):
                base = self.boundary(example.inputs)
        output = self.boundary(example.inputs)
        losses = example.losses(output, objective)
        if base is None:
            return losses
        return torch.where(torch.tensor(work.preserved).to(losses.device), example.kept(output, base), losses)

    def _update(
        self,
        sums: Tensor,
        planned: float,
        rate: float,
        step: int,
        objective: ObjectiveConfig,
        suspects: NonFiniteCandidates,
    ) -> StepResult:
        loss_sum, actual, clips, repeated, failed, *asked = sums[:_HEAD].tolist()
        n = len(self.table.buckets)
        by_bucket = {
            i: float(sums[_HEAD + i] / sums[_HEAD + n + i]) for i in range(n) if sums[_HEAD + n + i] > 0
        }
        norm = self._gradient_norm(planned / actual) if actual > 0 else math.nan
        finite = math.isfinite(loss_sum) and (actual == 0 or math.isfinite(norm))
        blame = None if finite else self._blame(suspects, step, objective)
        applied = finite and actual > 0
        if applied:
            self.state.optimizer.step()
            self.state.update_ema(step, self.train.ema_decay)
        self.state.optimizer.zero_grad()
        loss = loss_sum / actual if actual > 0 else math.nan
        return StepResult(
            applied,
            finite,
            loss,
            by_bucket,
            norm,
            rate,
            int(clips),
            int(repeated),
            int(failed),
            StepFlags(*(n > 0 for n in asked)),
            blame=blame,
        )

    def _blame(self, suspects: NonFiniteCandidates, step: int, objective: ObjectiveConfig) -> NonFiniteCause:
        """Find where numbers stopped to be finite; all ranks come here together."""
        assert suspects.batch is not None, "a step has a micro-batch on every rank"
        example = self._example(suspects.batch, step, objective)
        found = nonfinite.origin(self.state.module, example.inputs, lambda: self.boundary(example.inputs))
        return NonFiniteCause.from_parts(self.world.gather((found, suspects.clips)))

    def _gradient_norm(self, scale: float) -> float:
        """Scale gradients for clips that did not count, clip them, and return their norm before clipping.

        Those whose norm is not finite are left as they are, since clipping would spread what is wrong.
        """
        parameters = [p for p in self.state.module.parameters() if p.grad is not None]
        if scale != 1.0:
            for parameter in parameters:
                assert parameter.grad is not None
                parameter.grad.mul_(scale)
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        value = float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)
        if self.train.max_grad_norm is not None and math.isfinite(value):
            torch.nn.utils.clip_grads_with_norm_(parameters, self.train.max_grad_norm, norm)
        return value
