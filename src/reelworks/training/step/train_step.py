"""One optimizer step: forward and backward over micro-batches, sums over ranks, gradient clipping, update.

`TrainStep.run` is the whole step, from top to bottom. The host does not read from the device while it launches
micro-batches: losses, weights and counts are summed on the device, and read once, after the gradient norm. (On MPS,
which has no float64, the sums are on the CPU; `_find_cause` reads again, after a step that is not finite.)

A rank without clips still runs a filler micro-batch, so that collectives match. `torch.where` sets its loss to 0;
multiplying by 0 would not do, since 0 · NaN is NaN. Its inputs are finite, so its gradients are 0.

The suffix of a tensor is its shape: `_B` has one value for each clip of a micro-batch.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from reelworks.core import hash_rng
from reelworks.core.errors import UserError
from reelworks.core.hash_rng import Purpose
from reelworks.data.buckets.entry import Recomputation
from reelworks.data.buckets.table import BucketTable
from reelworks.data.distributed import mesh
from reelworks.data.distributed.mesh import World
from reelworks.data.loader import step_source
from reelworks.data.loader.micro_batch import MicroBatch, MicroBatchRequest
from reelworks.data.schedule import cost
from reelworks.data.schedule.cursor import RUN_START, StageStart
from reelworks.data.schedule.plan import EpochPlan, ForwardCounts
from reelworks.models import components
from reelworks.models.api import DenoiserInputs
from reelworks.models.precision.boundary import DtypeBoundary
from reelworks.models.sequence.sequence_parallel import SequenceParallel
from reelworks.training.recipe.recipe import Recipe
from reelworks.training.step import block_norms, nonfinite, progress, sound_inputs
from reelworks.training.step.adapter_watch import AdapterWatch, IdleLayers
from reelworks.training.step.compiled_blocks import CompiledBlocks
from reelworks.training.step.examples import Example, ExampleBuilder, kinds_of, name_of_kinds
from reelworks.training.step.forward_times import ForwardTimes
from reelworks.training.step.losses import Passes, PlainLoss, loss_of
from reelworks.training.step.nonfinite import KeptBatch, NonFiniteCause
from reelworks.training.step.progress import learning_rate
from reelworks.training.step.spikes import Spike, SpikeClip, SpikeGroup
from reelworks.training.step.state import TrainState
from reelworks.training.step.step_sums import StepFlags, StepSums, StepTotals

_EPSILON = 1e-6  # as in `torch.nn.utils.clip_grad_norm_`


@dataclass(frozen=True, kw_only=True)
class StepResult(StepTotals):
    """Result of a step, with its sums over all ranks.

    Attributes:
        applied: False if weights were not updated; see `why_not`.
        finite: False if the loss or a gradient was not finite.
        learning_rate: Rate of this step that acts; see `ShardedOptimizer.set_rate`.
        grad_norm: Norm of the whole gradient before clipping.
        grad_norm_by_block: Norm of each block's gradient; empty in steps that do not measure it.
        skipped_by_recipe: True if train.skip_steps names the step.
        idle: Layers of an adapter whose gradient is not finite, if they were not told before.
        spike: What was far above the usual, if anything was.
        stops: Why the step must not be taken, if clips of this rank say so, see `MicroBatch.stops`; its `flags` are `stuck` then.
        batches: Micro-batches that count on this rank, without their frames; with `clip_losses` and `clip_times` the only parts that
            are not equal on all ranks.
        clip_losses, clip_times: Loss and timestep of each clip of `batches`, one after another; empty if they are not noted.
    """

    applied: bool
    finite: bool
    learning_rate: float
    grad_norm: float = math.nan
    grad_norm_by_block: dict[str, float] = field(default_factory=dict)
    skipped_by_recipe: bool = False
    blame: NonFiniteCause | None = None
    idle: Sequence[IdleLayers] = ()
    spike: Spike | None = None
    stops: UserError | None = None
    batches: tuple[MicroBatch, ...] = ()
    clip_losses: list[float] = field(default_factory=list)
    clip_times: list[float] = field(default_factory=list)

    @property
    def why_not(self) -> str:
        """Reason why the step was not applied."""
        if self.skipped_by_recipe:
            return "named by train.skip_steps"
        if self.spike is not None:
            return f'{self.spike}; train.spikes = "skip"'
        if self.finite and self.clips + self.repeats:
            return "the loss masks of its clips show nothing that is trained"
        return "no clip could be decoded" if self.finite else f"loss or gradient is not finite, {self.blame}"

    @classmethod
    def skipped(cls, rate: float) -> StepResult:
        """Return the result of a step that train.skip_steps names."""
        # A skipped step has no collective: an asynchronous save and a request to stop wait for the next real step.
        flags = StepFlags(stop=False, save=False, writing=True)
        return cls(applied=False, finite=True, learning_rate=rate, flags=flags, skipped_by_recipe=True)


@dataclass(frozen=True)
class TrainStep:
    """Take optimizer steps with one model, which changes `state` in place."""

    boundary: DtypeBoundary[DenoiserInputs]
    examples: ExampleBuilder
    state: TrainState
    world: World
    compiled: CompiledBlocks = field(default_factory=CompiledBlocks.none)
    times: ForwardTimes = field(default_factory=lambda: ForwardTimes(torch.device("cpu"), False))
    stage: StageStart = RUN_START
    sequence: SequenceParallel = field(default_factory=SequenceParallel)
    watch: AdapterWatch = field(default_factory=AdapterWatch.none)
    recomputation: Sequence[Recomputation] = ()  # of each bucket, for a network that leaves it to the bucket

    @property
    def recipe(self) -> Recipe:
        """The recipe that is trained."""
        return self.examples.recipe

    @cached_property
    def loss(self) -> PlainLoss:
        """The kind of loss that the recipe asks for."""
        return loss_of(self.recipe, Passes(self.boundary, self.state.module, self.compiled))

    @property
    def table(self) -> BucketTable:
        """Its buckets."""
        return self.examples.table

    def run(
        self, examples: Iterable[Example], *, plan: EpochPlan, plan_step: int, step: int, flags: StepFlags
    ) -> StepResult:
        """Take step `plan_step` of a plan, after `step` done ones of the run; all ranks call it together.

        `examples` are made of this rank's micro-batches of the step, each when it is asked for. `flags` are the rank's
        requests to all ranks.
        """
        state, train = self.state, self.recipe.train
        # The loss is a weighted mean over the clips of all ranks. Its denominator is not known before all micro-batches
        # are decoded, so backward passes divide by the planned weight, and gradients are rescaled before the update.
        planned = step_source.parts_of_step(plan, plan_step, self.table)
        planned_weight = sum(self._clip_weight(bucket, clips) * clips for bucket, clips in planned)
        forwards = self._forward_counts(plan, plan_step)
        sums, kept = self._accumulate(examples, planned_weight, forwards, step)
        rate = self.set_rate(step)
        own = [each for each in kept if self._counts(each.batch)]
        stops = next((each.batch.stops for each in kept if each.batch.stops), None)
        flags = flags._replace(stuck=stops is not None)
        sums = sums.over_ranks(self.world, _count_clips(own), flags)
        # Failed clips and conditioning frames were planned, and have no weight.
        scale = planned_weight / sums.weight
        norm = self._gradient_norm(scale)
        scale = scale.to(norm)
        by_block = progress.is_due(train.log_block_grad_norms_every, step + 1)
        squares = norm.new_zeros(0)
        if by_block:
            squares = block_norms.squares(state.module, state.blocks, self.world) * scale.square()
        # The host waits for the device here, and nowhere else in the step.
        totals, ((grad_norm,), block_squares, losses, times) = sums.read(norm, squares, *self._of_clips(own))

        weight = totals.weight
        finite = totals.has_finite_loss and (weight == 0 or math.isfinite(grad_norm))
        learns = finite and weight > 0 and not totals.flags.stuck
        spike = self._compare_with_recent(totals.loss_by_kind, grad_norm, planned, kept) if learns else None
        applied = learns and (spike is None or train.spikes != "skip")
        if applied:
            if train.max_grad_norm is not None:
                scale = scale * (train.max_grad_norm / (norm + _EPSILON)).clamp(max=1.0)
            self.watch.note(rate)
            state.optimizer.step(scale)
            state.update_ema(step - self.stage.average_step, train.ema_decay)
        blame = None if finite else self._find_cause(kept, step, forwards.most)
        idle = [] if finite else self.watch.find_not_finite()
        state.optimizer.zero_grad()
        return StepResult(
            **vars(totals),
            applied=applied,
            finite=finite,
            learning_rate=rate,
            grad_norm=grad_norm if weight > 0 else math.nan,
            grad_norm_by_block=block_norms.by_name(state.module, state.blocks, block_squares) if by_block else {},
            blame=blame,
            idle=idle,
            spike=spike,
            stops=stops,
            batches=tuple(each.batch.without_frames() for each in own),
            clip_losses=losses,
            clip_times=times,
        )

    def _accumulate(
        self, examples: Iterable[Example], planned_weight: float, forwards: ForwardCounts, step: int
    ) -> tuple[StepSums, list[KeptBatch]]:
        """Run each example forward and backward, and return this rank's sums and what an unusual step asks for."""
        sums, kept = StepSums.begin(len(self.table.buckets), self.world.device), []
        for example in examples:
            request = example.batch.request
            self.world.mark("in a forward and backward pass", step + 1)
            mesh.set_gradient_sync(self.state.module, request.ends_step)
            self._seed_model(request, step)
            self.sequence.use(request.sequence_degree)
            recomputed = self.recomputation[request.bucket] if self.recomputation else None
            with self.compiled.running(request, example.inputs.text_mask, recomputed):
                with self.times.noting(request):
                    losses_B = self.loss.of_clips(example, forwards.min_batch_size(request.index))
                weights_B = self._weights(example)
                weighted_B = torch.where(example.valid_mask, weights_B * losses_B, 0.0)
                # FSDP takes the mean of gradients over ranks; the loss of a step is a sum over them. Each rank of a
                # sequence group has the gradient of its own tokens, so that the same sum holds for these.
                torch.autograd.backward(weighted_B.sum() * (self.world.size / planned_weight))
            times_B, kind_B = sound_inputs.trained_times(example.inputs), kinds_of(example)
            if self._counts(example.batch):
                sums.add(request.bucket, weighted_B.detach(), weights_B, times_B, kind_B)
            parts = (losses_B.detach(), example.valid_mask, times_B, kind_B)
            kept.append(KeptBatch(example.batch, example.objective, *parts))
        return sums, kept

    def _counts(self, batch: MicroBatch) -> bool:
        """Return whether a micro-batch counts on this rank: it is the same on all that share its clips."""
        return self.world.leads(batch.request.sequence_degree)

    def _of_clips(self, kept: list[KeptBatch]) -> tuple[Tensor, Tensor]:
        """Return the loss and the timestep of each clip of this rank, if they are to be noted."""
        if self.recipe.train.clip_losses == "off" or not kept:
            return torch.zeros(0), torch.zeros(0)
        return torch.cat([each.losses for each in kept]), torch.cat([each.times for each in kept])

    def _gradient_norm(self, scale: Tensor) -> Tensor:
        """Return the norm of the gradients times `scale`."""
        gradients = [grad for p in self.state.optimizer.trained.values() if (grad := p.grad) is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        return norm * scale.to(norm.dtype).to(norm.device)

    def _compare_with_recent(
        self,
        loss_by_kind: dict[tuple[int, int], float],
        grad_norm: float,
        planned: list[tuple[int, int]],
        kept: list[KeptBatch],
    ) -> Spike | None:
        """Compare a step with recent ones, to which it belongs from now on; return what was far above the usual.

        `planned` are the bucket and the clips of each of its micro-batches. Collective if there is something: all ranks
        compare the same numbers.
        """
        train, buckets = self.recipe.train, self.table.buckets
        if train.spikes == "off":
            return None
        largest, _ = max(planned, key=lambda each: buckets[each[0]].tokens * each[1])
        objectives = kept[-1].objective, self.recipe.objective

        def group(bucket: int, kind: Collection[int]) -> SpikeGroup:
            return SpikeGroup(buckets[bucket].name, name_of_kinds(kind, *objectives))

        losses = {group(bucket, [kind]): loss for (bucket, kind), loss in loss_by_kind.items()}
        all_kinds = group(largest, {kind for _, kind in loss_by_kind})
        spike = self.state.spikes.add(losses, grad_norm, all_kinds, threshold=train.spike_threshold)
        if spike is None:
            return None
        clips = [
            clip
            for each in kept
            if self._counts(each.batch)
            for kind, clip in _clips(each)
            if spike.what == "grad_norm" or spike.group == group(each.batch.request.bucket, [kind])
        ]
        return spike.with_clips(self.world.gather(clips))

    def set_rate(self, step: int) -> float:
        """Set the learning rate of the step that follows `step` done ones, and return what of it acts."""
        return self.state.optimizer.set_rate(learning_rate(self.recipe.train, step, self.stage))

    def _clip_weight(self, bucket: int, clips: int) -> float:
        """Return the loss weight of one clip: its tokens, 1, or 1 / clips of the micro-batch, by `train.loss_reduction`."""
        return float(cost.loss_weight(self.recipe.train.loss_reduction, self.table.buckets[bucket].tokens, clips))

    def _weights(self, example: Example) -> Tensor:
        """Return the loss weight of each clip, `[B]`; 0 for a clip that does not count."""
        weights_B = torch.full_like(example.generated_share, self._clip_weight(example.batch.request.bucket, clips=1))
        if self.recipe.train.loss_reduction == "token":
            weights_B = weights_B * example.generated_share
        elif self.recipe.train.loss_reduction == "micro_batch":  # the clips that count share its weight
            weights_B = weights_B / example.valid_mask.sum().clamp(min=1)
        return torch.where(example.valid_mask, weights_B, 0.0)

    def _seed_model(self, request: MicroBatchRequest, step: int) -> None:
        """Seed the network's own draws by the step and the micro-batch, so that a resumed run draws the same."""
        where = (request.index, request.part) if request.part else (request.index,)
        seed, device = hash_rng.hash_int(self.recipe.seed, step, *where, Purpose.MODEL) >> 1, self.world.device
        random.seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)
        torch.default_generator.manual_seed(seed)  # `torch.manual_seed` also asks for other kinds of devices
        if device.type != "cpu":
            torch.get_device_module(device).manual_seed(seed)

    def _forward_counts(self, plan: EpochPlan, plan_step: int) -> ForwardCounts:
        """Return how many clips the ranks compute at the same time, if their network takes a pass for each."""
        if self.world.size == 1 or not components.family_config(self.recipe.model).network.passes.clip_by_clip:
            return ForwardCounts((), 1)
        return ForwardCounts.from_step(plan, plan_step, self.world.data_size, self.table.parts())

    def _find_cause(self, kept: list[KeptBatch], step: int, at_least: int) -> NonFiniteCause:
        """Find where numbers stopped being finite, by another forward pass of a micro-batch. Collective.

        A rank whose losses are all finite runs its last micro-batch. The step's gradients are still in place.
        """
        bad = nonfinite.first_bad(kept)
        clips = nonfinite.bad_clips([each for each in kept if self._counts(each.batch)])
        example = self.examples.build(self.examples.encode(bad.batch), bad.objective)
        self._seed_model(bad.batch.request, step)
        self.sequence.use(bad.batch.request.sequence_degree)
        origin = nonfinite.origin(self.state.module, example.inputs, lambda: self.loss.of_clips(example, at_least))
        return NonFiniteCause.from_parts(self.world.gather((origin, clips)))


def _count_clips(kept: list[KeptBatch]) -> tuple[int, int, int]:
    """Return the numbers of first uses, of repeats and of failed clips."""
    batches = [each.batch for each in kept]
    uses = [batch.request.is_first_use[batch.is_valid.numpy()] for batch in batches]
    first = sum(int(np.count_nonzero(each)) for each in uses)
    return first, sum(map(len, uses)) - first, sum(batch.failed for batch in batches)


def _clips(kept: KeptBatch) -> list[tuple[int, SpikeClip]]:
    """Return the clips of a micro-batch that count, each with its kind, and with its loss."""
    work, facts = kept.batch.request, (kept.kinds.tolist(), kept.losses.tolist(), kept.valid_mask.tolist())
    return [
        (kind, SpikeClip(int(work.uids[i]), str(work.requests[i].path), loss))
        for i, (kind, loss, counts) in enumerate(zip(*facts, strict=True))
        if counts
    ]
