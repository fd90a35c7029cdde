"""One optimizer step: forward and backward over micro-batches, sums over ranks, clipping, update.

`TrainStep.run` is the whole of it, from top to bottom. No result is read back from the device while micro-batches are
launched: losses, weights and counts are summed on the device, and read once, after the norm of the gradient. (On MPS,
which has no float64, the sums live on the CPU; `_blame` reads again, after a step that is not finite.)

A rank without samples in a micro-step still runs a micro-batch, so that collectives match; its loss is selected away
by `torch.where`, never multiplied by 0, since 0 · NaN is NaN. Its inputs are finite, so its gradients are 0.

Suffixes of tensors: B clips of a micro-batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor, nn

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
from reelworks.train.lr_schedule import learning_rate
from reelworks.train.nonfinite import NonFiniteCandidates, NonFiniteCause
from reelworks.train.state import TrainState


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
class StepSums:
    """Sums over the micro-batches of a step, in float64 on the device, first of one rank and then of all.

    Attributes:
        loss: Weighted losses of the clips that count.
        weight: Their weights.
        clips: Clips that count, each once.
        repeats: Second and later showings that count.
        failed: Clips that could not be decoded.
        flags: `[3]` ranks that ask for each of `StepFlags`.
        loss_by_bucket, weight_by_bucket: `[buckets]` the first two, by bucket.
    """

    loss: Tensor
    weight: Tensor
    clips: Tensor
    repeats: Tensor
    failed: Tensor
    flags: Tensor
    loss_by_bucket: Tensor
    weight_by_bucket: Tensor

    @classmethod
    def begin(cls, flags: StepFlags, buckets: int, device: torch.device) -> StepSums:
        """Begin with what this rank asks for, and nothing summed."""
        if device.type == "mps":  # which has no float64
            device = torch.device("cpu")

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        return cls(
            loss=zeros(),
            weight=zeros(),
            clips=zeros(),
            repeats=zeros(),
            failed=zeros(),
            flags=torch.tensor(flags, dtype=torch.float64, device=device),
            loss_by_bucket=zeros(buckets),
            weight_by_bucket=zeros(buckets),
        )

    def add(self, batch: MicroBatch, loss: Tensor, weight: Tensor) -> None:
        """Add a micro-batch, in place and without waiting for the device.

        Args:
            batch: The micro-batch; which of its clips count is known to the host.
            loss: `[]` sum of the weighted losses.
            weight: `[]` sum of the weights.
        """
        bucket, counts, first = batch.work.bucket, batch.is_valid.numpy(), batch.work.first
        # In two calls: the device that lacks float64 cannot convert to it.
        loss, weight = (value.to(self.loss.device).double() for value in (loss, weight))
        self.loss.add_(loss)
        self.weight.add_(weight)
        self.loss_by_bucket[bucket].add_(loss)
        self.weight_by_bucket[bucket].add_(weight)
        self.clips.add_(int((counts & first).sum()))
        self.repeats.add_(int((counts & ~first).sum()))
        self.failed.add_(batch.failed)

    def over_ranks(self, world: World) -> StepSums:
        """Return the sums of all ranks together, by one collective."""
        return self._unpacked(world.sum(self._packed()))

    def read(self, grad_norm: Tensor) -> tuple[StepSums, float]:
        """Bring the sums and the norm of the gradient to the host, in one transfer that waits for the device."""
        norm = grad_norm.to(self.loss.device).double()
        values = torch.cat([self._packed(), norm.reshape(1)]).cpu()
        return self._unpacked(values[:-1]), float(values[-1])

    def _parts(self) -> list[Tensor]:
        return [getattr(self, field.name) for field in fields(self)]

    def _packed(self) -> Tensor:
        return torch.cat([part.reshape(-1) for part in self._parts()])

    def _unpacked(self, values: Tensor) -> StepSums:
        parts = self._parts()
        cut = torch.split(values, [part.numel() for part in parts])
        return StepSums(*(value.view_as(part) for value, part in zip(cut, parts, strict=True)))


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """Result of a step, equal on all ranks.

    Attributes:
        applied: False if weights were not updated; see `why_not`.
        finite: False if the loss or a gradient was not finite.
        loss: Weighted mean over the clips of all ranks; NaN where there were none.
        loss_by_bucket: The same for each bucket that took part.
        grad_norm: Norm of the whole gradient before clipping.
        learning_rate: Used in this step, with the factor that an optimizer finds by itself.
        clips: Clips that counted, each once.
        repeats: Second and later showings that counted.
        failed: Clips that could not be decoded.
        flags: What any rank asked of all.
        skipped_by_recipe: True if the recipe leaves the step out.
        blame: Of a step that is not finite, where that began.
    """

    applied: bool
    finite: bool
    loss: float
    loss_by_bucket: dict[int, float]
    grad_norm: float
    learning_rate: float
    clips: int
    repeats: int
    failed: int
    flags: StepFlags
    skipped_by_recipe: bool = False
    blame: NonFiniteCause | None = None

    @property
    def why_not(self) -> str:
        """Why it was not applied."""
        if self.skipped_by_recipe:
            return "train.skip_steps names it"
        if self.finite:
            return "no clip could be decoded"
        return f"loss or gradient is not finite, {self.blame}"

    @classmethod
    def skipped(cls, rate: float) -> StepResult:
        """Return the result of a step that the recipe leaves out."""
        return cls(
            applied=False,
            finite=True,
            loss=math.nan,
            loss_by_bucket={},
            grad_norm=math.nan,
            learning_rate=rate,
            clips=0,
            repeats=0,
            failed=0,
            # No collective in a skipped step: assume that a save is in flight, and let a stop request wait for the
            # next real step.
            flags=StepFlags(stop=False, save=False, writing=True),
            skipped_by_recipe=True,
        )


@dataclass(frozen=True)
class TrainStep:
    """All that a step needs and does not change, beside the state that it does."""

    boundary: DtypeBoundary[DenoiserInputs]
    encoder: LiveEncoder
    state: TrainState
    table: BucketTable
    world: World
    recipe: Recipe

    def run(
        self, batches: Iterable[MicroBatch], *, plan: EpochPlan, row: int, step: int, flags: StepFlags
    ) -> StepResult:
        """Take one optimizer step.

        Args:
            batches: This rank's micro-batches of the row, in order.
            plan: The plan that holds the row.
            row: Which row.
            step: Optimizer steps done before this one.
            flags: What this rank asks of all.
        """
        state, world, train = self.state, self.world, self.recipe.train
        rate = self.set_rate(step)
        # A step of a model with two experts trains one of them, by its part of the timesteps.
        objective = self._objective(plan, row, step)
        # The loss is a weighted mean over all ranks, so every backward pass needs the sum of the weights, which only
        # the plan knows yet. Gradients are scaled to the real sum below.
        planned_weight = self.planned_weight(plan, row)
        sums = StepSums.begin(flags, len(self.table.buckets), world.device)
        candidates = NonFiniteCandidates()

        state.optimizer.zero_grad()
        for batch in batches:
            mesh.set_gradient_sync(state.module, batch.work.ends_step)
            example = self._example(batch, objective, step)
            losses_B = self._losses(batch.work, example, objective)
            weights_B = self._weights(batch.work, example)
            loss = torch.where(example.counts, weights_B * losses_B, 0.0).sum()
            # FSDP takes the mean of gradients over ranks; the loss of a step is a sum over them.
            torch.autograd.backward(loss * (world.size / planned_weight))
            sums.add(batch, loss.detach(), weights_B.sum())
            candidates.keep(batch, losses_B, example.counts)

        totals = sums.over_ranks(world)
        parameters = [p for p in state.module.parameters() if p.grad is not None]
        # Clips that failed, and frames that are given, were planned and do not count.
        _scale_gradients(parameters, planned_weight / totals.weight)
        gradients = [p.grad for p in parameters if p.grad is not None]  # again, for the type checker
        norm = torch.nn.utils.get_total_norm(gradients)
        # Here the host waits for the device, once, and from here on it knows the numbers.
        totals, grad_norm = totals.read(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)

        loss_sum, weight = float(totals.loss), float(totals.weight)
        finite = math.isfinite(loss_sum) and (weight == 0 or math.isfinite(grad_norm))
        applied = finite and weight > 0
        if applied:
            if train.max_grad_norm is not None:
                torch.nn.utils.clip_grads_with_norm_(parameters, train.max_grad_norm, norm)
            state.optimizer.step()
            state.update_ema(step, train.ema_decay)
        blame = None if finite else self._blame(candidates, objective, step)
        state.optimizer.zero_grad()
        by_bucket = zip(totals.loss_by_bucket.tolist(), totals.weight_by_bucket.tolist(), strict=True)
        return StepResult(
            applied=applied,
            finite=finite,
            loss=loss_sum / weight if weight > 0 else math.nan,
            loss_by_bucket={i: part / whole for i, (part, whole) in enumerate(by_bucket) if whole > 0},
            grad_norm=grad_norm if weight > 0 else math.nan,
            learning_rate=rate,
            clips=int(totals.clips),
            repeats=int(totals.repeats),
            failed=int(totals.failed),
            flags=StepFlags(*(ranks > 0 for ranks in totals.flags.tolist())),
            blame=blame,
        )

    def set_rate(self, step: int) -> float:
        """Set the learning rate of the step after `step` done ones, and return it."""
        return self.state.optimizer.set_rate(learning_rate(self.recipe.train, step))

    def planned_weight(self, plan: EpochPlan, row: int) -> float:
        """Weight of a row over all ranks, known from the plan alone."""
        total = 0.0
        for micro_batch in plan.micro_batches(row).tolist():
            where = plan.places(micro_batch)
            clips = int(plan.real[where].sum())
            total += self._clip_weight(int(plan.bucket[where.start]), clips) * clips
        return total

    def _clip_weight(self, bucket: int, clips: int) -> float:
        """Return the loss weight of one clip: its tokens, 1, or 1 / clips of the micro-batch, by `train.loss_reduction`."""
        return float(cost.loss_weight(self.recipe.train.loss_reduction, self.table.buckets[bucket].tokens, clips))

    def _weights(self, work: MicroBatchRequest, example: Example) -> Tensor:
        """Return the loss weight of every clip, `[B]`; 0 where it does not count."""
        clip_weight = self._clip_weight(work.bucket, int(work.real.sum()))
        weights_B = torch.full_like(example.generated_share, clip_weight)
        if self.recipe.train.loss_reduction == "token":
            weights_B = weights_B * example.generated_share
        return torch.where(example.counts, weights_B, 0.0)

    def _objective(self, plan: EpochPlan, row: int, step: int) -> ObjectiveConfig:
        geometry = self.encoder.autoencoder.geometry
        return expert_choice.objective_of_step(self.recipe, self.table, geometry, plan=plan, row=row, step=step)

    def _example(self, batch: MicroBatch, objective: ObjectiveConfig, step: int) -> Example:
        """Return the model's inputs, the same each time."""
        seed = self.recipe.seed
        example = training_example(batch, self.encoder, objective, seed=seed)
        # Randomness inside the model, if it has any, is a function of the place, not of history.
        torch.manual_seed(hash_rng.hash_int(seed, step, batch.work.index, Purpose.MODEL) >> 1)
        return example

    def _losses(self, work: MicroBatchRequest, example: Example, objective: ObjectiveConfig) -> Tensor:
        """Loss of every clip, `[B]`: how far it is from what is there, or from what the base says."""
        base = None
        # On all ranks together: weights in shards are gathered by all or none.
        if any(d.prior_prediction for d in self.recipe.dataset):
            with torch.no_grad(), inject.without(self.state.module):
                base = self.boundary(example.inputs)
        output = self.boundary(example.inputs)
        losses_B = example.losses(output, objective)
        if base is None:
            return losses_B
        target_is_base_B = torch.tensor(work.target_is_base).to(losses_B.device, non_blocking=True)
        return torch.where(target_is_base_B, example.kept(output, base), losses_B)

    def _blame(self, candidates: NonFiniteCandidates, objective: ObjectiveConfig, step: int) -> NonFiniteCause:
        """Find where numbers stopped being finite, by running a micro-batch again.

        Collective: a rank whose losses are all finite runs its last one. Gradients are still those of the step.
        """
        batch, clips = candidates.first_bad()
        example = self._example(batch, objective, step)
        origin = nonfinite.origin(self.state.module, example.inputs, lambda: self.boundary(example.inputs))
        return NonFiniteCause.from_parts(self.world.gather((origin, clips)))


@torch.no_grad()
def _scale_gradients(parameters: list[nn.Parameter], scale: Tensor) -> None:
    """Multiply gradients in place by a number that the device alone knows."""
    gradients = [mesh.local(p.grad) for p in parameters if p.grad is not None]
    if gradients:
        torch._foreach_mul_(gradients, scale.to(gradients[0].dtype).to(gradients[0].device))
