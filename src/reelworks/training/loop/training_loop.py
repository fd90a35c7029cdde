"""Loop over the optimizer steps of a run, or of one of its stages.

An epoch is planned as optimizer steps; a step holds the micro-batches of all ranks. If the data change within an epoch,
the rest of it is planned again, as the next segment. A position is the step of a plan to train next.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Literal, cast

import numpy as np

from reelworks.core import log
from reelworks.core.errors import UserError
from reelworks.core.log import logger
from reelworks.data.loader import failures
from reelworks.data.loader.failures import FailedClip
from reelworks.data.loader.position import DataPosition, next_epoch, no_steps
from reelworks.data.loader.step_source import StepSource
from reelworks.data.media.decode_pool import DecodePool
from reelworks.data.run import events
from reelworks.inference.generate.pipeline import GenerateOptions
from reelworks.models.api import Denoiser
from reelworks.models.export import exports_folder
from reelworks.training.assembly.build import TrainedModel
from reelworks.training.encoding import stored_batches
from reelworks.training.encoding.encode_prefetcher import EncodePrefetcher
from reelworks.training.encoding.stored_batches import StoredLatents
from reelworks.training.loop import resume
from reelworks.training.loop.checkpointing import CheckpointManager
from reelworks.training.loop.early_stop import EarlyStop
from reelworks.training.loop.open_run import OpenRun
from reelworks.training.loop.stages import Stage
from reelworks.training.loop.stop_signals import StopSignals
from reelworks.training.observers import balance, previews
from reelworks.training.observers.balance import ForwardTimes
from reelworks.training.observers.clip_measure import ClipMeasurer
from reelworks.training.observers.previews import Previewer
from reelworks.training.observers.profile import StepProfiler
from reelworks.training.observers.run_logger import RunLogger
from reelworks.training.observers.validation import Validator
from reelworks.training.plan import compiled_graphs
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.step import out_of_memory, progress
from reelworks.training.step.adapter_watch import AdapterWatch
from reelworks.training.step.examples import ExampleBuilder
from reelworks.training.step.step_sums import StepFlags
from reelworks.training.step.train_step import StepResult, TrainStep

# "stage": finished, and another stage follows; "signal": the same command goes on
EndReason = Literal["finished", "stage", "signal"]


class Trainer:
    """Loop over steps: take a step, log it, count its clips, then validate, save and preview when they are due."""

    def __init__(
        self,
        run: OpenRun,
        data: RecipeData,
        model: TrainedModel,
        preview_options: GenerateOptions | None,
        checkpoints: CheckpointManager,
        log: RunLogger,
        early: EarlyStop,
        profiler: StepProfiler,
        stored: StoredLatents | None = None,
    ) -> None:
        self._early, self._profiler = early, profiler
        recipe, world = data.recipe, run.world
        boundary, state = model.boundary, model.state
        encoder = stored_batches.choose(model.encoder, world, stored)
        self.data, self._encoder = data, encoder
        self._recipe, self._run, self._world = recipe, run, world
        self._checkpoints, self._log = checkpoints, log
        self._source = StepSource(
            data,
            rank=world.data_rank,
            world=world.data_size,
            max_steps=recipe.train.max_steps,
            max_epochs=recipe.train.max_epochs,
            skips=recipe.train.skips,
            sequence_rank=None if world.sequence is None else world.sequence.rank,
        )
        self._compiled = model.compiled
        self._balance_every = recipe.train.log_balance_every
        times_forward = world.size > 1 and world.sequence is None and self._balance_every is not None
        self._times = ForwardTimes(world.device, times_forward and balance.can_time_forward(state.module))
        self._examples = ExampleBuilder(recipe, data.table, encoder)
        experts = 2 if recipe.model.experts == "both" else 1
        denoiser = cast(Denoiser, boundary.denoiser)
        # Only the main rank tells it.
        past = events.timeline(run.folder.events_file, "idle_layers") if world.is_main else []
        told = {(layer, event["problem"]) for event in past for layer in event["layers"]}
        used = {*denoiser.lora_targets("default"), *denoiser.lora_targets("blocks")}
        self._watch = AdapterWatch(state.optimizer.trained, world, experts=experts, always_used=used, told=told)
        self._train_step = TrainStep(
            boundary,
            self._examples,
            state,
            world,
            model.compiled,
            self._times,
            data.stage,
            sequence=model.sequence,
            watch=self._watch,
        )
        self._state = state
        self._validator = Validator(
            boundary, encoder, world, self._source, data.held_out(), recipe, sequence=model.sequence
        )
        self._clip_measurer = ClipMeasurer(boundary, encoder, world, self._source, data, state, model.sequence)
        metrics = previews.metrics(data, world.device)
        self._previewer = Previewer(
            recipe,
            boundary,
            model.encoder,
            state,
            world,
            run.folder,
            preview_options,
            model.sequence,
            metrics,
            model.layout,
        )
        self._consecutive_non_finite = 0
        self._step_seconds = 0.0

    def train(self, position: DataPosition, stage: Stage, signals: StopSignals) -> tuple[DataPosition, EndReason]:
        """Train from a position to the end of the stage, and return where and why training stopped."""
        self._world.wait()  # a signal stops all ranks in the same way
        signals.begin_stage()
        config, resumed = self._recipe.data, stage.step is not None
        with ExitStack() as stack:
            pool = DecodePool(
                config.num_workers if self._encoder.decodes(self.data.table) else 0, config.decode_timeout
            )
            stack.callback(pool.close)
            if self._recipe.train.clip_losses != "off":
                self._state.clip_losses.begin(self.data, position, is_main=self._world.is_main)
            if resumed and not stage.begins:
                self._measure_if_lacking(position, pool)
            if self._is_done(position):
                self._complete(position, pool, resumed=resumed)
                return self._end_stage(position, stage, signals)

            if not resumed:
                self._validate(position, pool)  # of the untrained weights, for comparison
            elif not stage.begins and progress.is_due(self._recipe.samples.every_steps, position.global_step):
                self._make_lacking_previews(position.global_step)
            self._measure_clips(position, pool)  # a signal may have come before it
            batches = self._encoded_batches(position, pool)
            self._begin_segment(position)
            while not self._is_done(position):
                if position.at_end:
                    with log.stage("planning the next epoch"):
                        position, empty = next_epoch(self.data, position.spec, position)
                    resume.log_empty(empty)
                    if self._is_done(position):  # no clip is drawn in any of the epochs that were left
                        self._after_step(position, pool, None)
                    else:
                        self._begin_segment(position)
                    continue
                position, flags = self._take_step(position, batches, stop=bool(signals.received))
                # A signal to any rank stops all ranks after the same step.
                if flags.stop and not self._is_done(position):
                    self._save_and_leave(position, pool)
                    return self._stop(position, "signal")
                self._after_step(position, pool, flags)
            self._end_record(position)
            return self._end_stage(position, stage, signals)

    def _encoded_batches(self, position: DataPosition, pool: DecodePool) -> EncodePrefetcher:
        """Return the encoded micro-batches from a position to the end of training, across epochs."""
        data, encode = self._recipe.data, self._recipe.encode
        requests = self._source.requests_from(position)
        batches = self._encoder.read(requests, pool, data.prefetch_budget_bytes)
        is_ahead = encode.store if encode.ahead == "auto" else encode.ahead
        return EncodePrefetcher(batches, self._examples.encode, self._world.device, is_ahead=is_ahead)

    def _is_done(self, position: DataPosition) -> bool:
        return self._early.is_over or progress.is_done(self._recipe.train, position)

    def _take_step(
        self, position: DataPosition, batches: EncodePrefetcher, *, stop: bool
    ) -> tuple[DataPosition, StepFlags]:
        """Train the step at a position, log it, and raise if too much has failed to go on.

        `stop` is True if this rank was asked to save and stop. Returns the position after the step, and the flags of
        all ranks.
        """
        began = time.monotonic()
        step = position.global_step
        self._world.mark("waiting for clips", step + 1, self._paths_at(position))
        if self._recipe.train.skips(step + 1):
            result = StepResult.skipped(self._train_step.set_rate(step))  # the source omits it too
        else:
            self._profiler.before(step + 1)
            result = self._run_step(position, batches, self._checkpoints.flags(stop=stop))
            self._profiler.after(step + 1)
        self._step_seconds = time.monotonic() - began
        self._log.step(position, result, self._failed_clips(result), self._step_seconds, batches.waited_seconds())
        if self._state.clip_losses.is_on:
            batches_of_rank = result.batches if result.applied else ()
            of_clips = np.array(result.clip_losses), np.array(result.clip_times)
            trained = result.clips + result.repeats
            self._state.clip_losses.add(step + 1, batches_of_rank, *of_clips, trained=trained)
        if (news := self._compiled.news()) is not None:
            self._log.event("compiled", step=step + 1, **news)
        position = _advance(position, result)
        if progress.is_due(self._balance_every, position.global_step):
            self._log_balance(position)
        self._require_few_failures(position)
        self._require_finite(position.global_step, result)
        return position, result.flags

    def _failed_clips(self, result: StepResult) -> list[FailedClip]:
        """Return the clips of all ranks that could not be decoded in a step. Collective if there are any."""
        if not result.failed:
            return []
        of_ranks: list[Any] = self._world.gather(failures.failed_clips(result.batches))
        return list(itertools.chain(*of_ranks))

    def _paths_at(self, position: DataPosition) -> Callable[[int], list[str]]:
        """Return the paths of a rank's clips in the step at a position."""
        degree = self._world.sequence_degree
        return lambda rank: self._source.paths(position, *divmod(rank, degree))

    def _run_step(self, position: DataPosition, batches: EncodePrefetcher, flags: StepFlags) -> StepResult:
        """Train the step at a position, and tell which micro-batch memory was too small for."""
        step, world = position.global_step, self._world
        where: Any = {"plan": position.plan, "plan_step": position.plan_step, "step": step}
        encoded = batches.batches_of_step(lambda doing: world.mark(doing, step + 1))
        try:
            return self._train_step.run(self._examples.of_step(encoded, **where), flags=flags, **where)
        except Exception as error:
            if batches.request is None or not out_of_memory.is_lack(error):
                raise
            bucket, file = self.data.table.buckets[batches.request.bucket], self._run.folder.snapshot_file(world.rank)
            with out_of_memory.naming_bucket(bucket, world.device, file, what=f"a micro-batch of step {step + 1}"):
                raise

    def _save_and_leave(self, position: DataPosition, pool: DecodePool) -> None:
        """Save before all else: whoever sent the signal kills this process soon. Then validate, if that is due.

        What is cut short is measured by the next start, which also makes the previews.
        """
        self._world.mark("after it", position.global_step, limited=False)
        if position.at_end:
            self._log.epoch_ends(position)
        self._end_record(position)
        self._checkpoints.save_last(position, {})
        self._measure_if_lacking(position, pool)

    def _measure_if_lacking(self, position: DataPosition, pool: DecodePool) -> None:
        """Validate at a step whose checkpoint has no metrics, if they are due, and add them to it."""
        step = position.global_step
        if not progress.is_due(self._recipe.validation.every_steps, step) or self._checkpoints.has_metrics(step):
            return
        if metrics := self._validate(position, pool):
            self._checkpoints.record_metrics(step, metrics)

    def _after_step(self, position: DataPosition, pool: DecodePool, flags: StepFlags | None) -> None:
        """End the epoch, validate, save and preview, each if it is due.

        `flags` are those of all ranks in the step before, None if epochs passed without a step. A loss of an earlier step
        does not belong to this step's checkpoint.
        """
        step, done = position.global_step, self._is_done(position)
        # Validation, saves and previews last as long as they do.
        self._world.mark("after it", step, limited=False)
        metrics: dict[str, float] = {}
        if position.at_end:
            self._log.epoch_ends(position)
        # Validate before saving, so that the checkpoint holds its loss.
        if done or progress.is_due(self._recipe.validation.every_steps, step):
            metrics = self._validate(position, pool)
            done = self._is_done(position)  # the validation loss may have ended training
        self._measure_clips(position, pool)
        previews_due = done or progress.is_due(self._recipe.samples.every_steps, step)
        # Only if they are measured, previews are made before saving; otherwise their failure could cost a checkpoint.
        if previews_due and self._previewer.metrics is not None:
            metrics = metrics | self._previewer.run(step, self._log)
        if done:
            self._checkpoints.save_last(position, metrics)
        elif flags is not None:
            self._checkpoints.after_step(position, metrics, flags, self._step_seconds)
        if done or self._watch.is_first_due or self._checkpoints.saved_step == step:
            for idle in self._watch.find_idle(is_end=done):
                self._log.idle_layers(step, idle)
        if previews_due and self._previewer.metrics is None:
            self._previewer.run(step, self._log)

    def _validate(self, position: DataPosition, pool: DecodePool) -> dict[str, float]:
        if not len(self._validator.held_out):
            return {}
        began = time.monotonic()
        with log.stage("validating"), self._state.averaged():
            result = self._validator.run(pool)
        if result is None:
            return {}
        self._log.validation(position.global_step, result, time.monotonic() - began)
        was_over = self._early.is_over
        self._early.add(position.global_step, result.loss)
        if self._early.is_over and not was_over:
            best = {"best": self._early.best, "best_step": self._early.best_step}
            self._log.event("early_stop", step=position.global_step, patience=self._early.config.patience, **best)
            logger.info("training ends: %s", self._early)
        return {"validation/loss": result.loss}

    def _measure_clips(self, position: DataPosition, pool: DecodePool) -> None:
        """Measure a round of clips with fixed noise, if one is due."""
        if (measured := self._clip_measurer.run_if_due(position, pool)) is not None:
            self._log.event("clip_losses", step=position.global_step, clips=measured.clips, seconds=measured.seconds)

    def _begin_segment(self, position: DataPosition) -> None:
        """Record and log the plan of an epoch, or of the rest of one."""
        if self._recipe.train.compile:
            self._compiled.prefer(compiled_graphs.choose(self.data, position.plan).compiled)
        if self._world.is_main:
            self._log.records.begin(position, self._checkpoints.epochs_in_use())
        self._log.epoch_begins(position)
        if not position.plan.num_steps:  # a resume found that the clips left in the epoch no longer exist
            self._log.epoch_ends(position)

    def _complete(self, position: DataPosition, pool: DecodePool, *, resumed: bool) -> None:
        """Validate and preview at the last step if a run was killed between its last save and its end."""
        step = position.global_step
        if not resumed:
            raise no_steps(self.data)
        if not position.plan.num_steps:
            self._begin_segment(position)
        if self._early.is_over:
            logger.info("nothing left to train at step %d: %s; raise it to train on", step, self._early)
        elif stage := position.stage.name:
            remedy = "raise that or train.max_steps, or add a stage"
            logger.info("nothing left to train at step %d; stage %s is at its end: %s", step, stage, remedy)
        else:
            keys = [f"train.{key}" for key in progress.reached(self._recipe.train, position)]
            logger.info("nothing left to train at step %d; raise %s", step, " and ".join(keys))
        if not self._checkpoints.has_metrics(step) and (metrics := self._validate(position, pool)):
            self._checkpoints.record_metrics(step, metrics)
        self._make_lacking_previews(step)

    def _make_lacking_previews(self, step: int) -> None:
        """Make the previews of the checkpoint that training went on from, if it was stopped before they were written."""
        if not self._previewer.exist(step):
            self._previewer.run(step, self._log)

    def _end_record(self, position: DataPosition) -> None:
        """Record how many steps of the segment were trained, if training stops within an epoch."""
        if self._world.is_main and not position.at_end:
            self._log.records.end(position)

    def _log_balance(self, position: DataPosition) -> None:
        """Compare the times of all ranks since the last comparison, if they are noted. Collective."""
        if not self._times.is_on:
            return
        ranks: list[Any] = self._world.gather(self._times.take(position.spec.costs_us))
        if self._world.is_main and ranks[0].notes:
            self._log.balance(position.global_step, balance.compare(ranks))

    def _end_stage(self, position: DataPosition, stage: Stage, signals: StopSignals) -> tuple[DataPosition, EndReason]:
        """Stop at the end of a stage. Collective, as a signal may have come to one rank since its last step began."""
        if stage.ends_run(position.global_step):
            return self._stop(position, "finished")
        return self._stop(position, "signal" if any(self._world.gather(bool(signals.received))) else "stage")

    def _stop(self, position: DataPosition, reason: EndReason) -> tuple[DataPosition, EndReason]:
        self._log_balance(position)
        self._profiler.close(position.global_step)
        self._log.event("stop", step=position.global_step, reason=reason)
        if reason == "signal":
            logger.info("stopped after step %d; the same command goes on", position.global_step)
        for line in exports_folder.how_to_use(self._checkpoints.exported) if reason == "finished" else ():
            logger.info(line)
        return position, reason

    def _require_few_failures(self, position: DataPosition) -> None:
        failures.require_few(
            position.counts.failed,
            position.counts.planned,
            self._recipe.data.max_decode_failures,
            field="data.max_decode_failures",
            remedy=f"see {self._run.folder.coverage_folder} for files and reasons; repair them or raise the limit",
        )

    def _require_finite(self, step: int, result: StepResult) -> None:
        """Raise after too many consecutive steps whose loss or gradient was not finite."""
        self._consecutive_non_finite = 0 if result.finite else self._consecutive_non_finite + 1
        train = self._recipe.train
        limit = 1 if train.non_finite == "stop" else train.max_non_finite
        if self._consecutive_non_finite < limit:
            return
        steps = f"{limit} consecutive steps, the last being {step}," if limit > 1 else f"step {step}"
        raise UserError(
            f"{steps} had a loss or gradient that is not finite, {result.blame}",
            code="non-finite",
            field="train.learning_rate",
            value=train.learning_rate,
            remedy="lower it or lengthen train.warmup_steps, then resume from an earlier checkpoint "
            'with --resume STEP; to train on past such steps, set train.non_finite = "skip" and raise '
            "train.max_non_finite",
        )


def _advance(position: DataPosition, result: StepResult) -> DataPosition:
    """Return the position after a step, with its clips counted."""
    # Trained clips are counted, never derived from the plan: a lost clip must show as a gap in the epoch's sums.
    trained, repeated, skipped = result.clips, result.repeats, 0
    if not result.applied:
        trained, repeated, skipped = 0, 0, position.plan.planned_in(position.plan_step) - result.failed
    counts = position.counts.add(trained, result.failed, skipped, repeated)
    return replace(position, plan_step=position.plan_step + 1, global_step=position.global_step + 1, counts=counts)
