"""Loop over the optimizer steps of a run, or of one of its stages.

An epoch is planned as optimizer steps; a step holds the micro-batches of all ranks. If the data change within an epoch,
the rest of it is planned again, as the next segment. A position is the step of a plan to train next.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Literal

from reelworks.core import log
from reelworks.core.errors import UserError
from reelworks.core.log import logger
from reelworks.data.loader import failures
from reelworks.data.loader.failures import FailedClip
from reelworks.data.loader.position import DataPosition, next_epoch, no_steps
from reelworks.data.media.decode_pool import DecodePool
from reelworks.data.media.patience import AWAY_SECONDS, StorageAway
from reelworks.models import components
from reelworks.models.export import exports_folder
from reelworks.training.encoding.encode_prefetcher import EncodePrefetcher
from reelworks.training.loop import resume
from reelworks.training.loop.checkpointing import CheckpointManager
from reelworks.training.loop.stages import Stage
from reelworks.training.loop.stop_signals import StopRequest
from reelworks.training.observers.balance import BalanceReports
from reelworks.training.observers.early_stop import EarlyStop
from reelworks.training.observers.observer import Pause, StepObserver, TrainedStep, Training
from reelworks.training.observers.run_logger import RunLogger
from reelworks.training.observers.step_reports import CompiledGraphs, IdleLayerReports, SlowSteps, SpikeReports
from reelworks.training.observers.validations import Validations
from reelworks.training.plan import compiled_graphs
from reelworks.training.step import optimizers, out_of_memory, progress
from reelworks.training.step.examples import ExampleBuilder
from reelworks.training.step.forward_times import ForwardTimes
from reelworks.training.step.step_sums import StepFlags
from reelworks.training.step.train_step import StepResult, TrainStep

# "stage": finished, and another stage follows; "signal", "storage": the same command goes on
EndReason = Literal["finished", "stage", "signal", "storage"]


class Trainer:
    """Loop over steps: take a step, let observers look at it, count its clips, and save when that is due."""

    def __init__(self, training: Training, checkpoints: CheckpointManager, log: RunLogger, early: EarlyStop) -> None:
        data, model, world = training.data, training.model, training.world
        recipe = data.recipe
        self.data, self._recipe, self._world = data, recipe, world
        self._folder, self._checkpoints, self._log, self._early = training.folder, checkpoints, log, early
        self._state = model.state
        self._source, self._encoder, self._compiled = training.source, training.encoder, model.compiled
        timed = recipe.train.log_balance_every is not None and world.size > 1 and world.sequence is None
        # Forward passes of a rank are its own where no weight is sharded over ranks, and collected in the pass.
        times = ForwardTimes(world.device, timed and all(map(optimizers.is_whole, model.state.module.parameters())))
        self._examples = ExampleBuilder(recipe, data.table, training.encoder)
        idle = IdleLayerReports.of_training(training)
        self._train_step = TrainStep(
            model.boundary,
            self._examples,
            model.state,
            world,
            model.compiled,
            times,
            data.stage,
            sequence=model.sequence,
            watch=idle.watch,
            recomputation=model.recomputation,
        )
        self._observers: list[StepObserver] = [
            log,
            SlowSteps(training),
            SpikeReports(training),
            idle,
            CompiledGraphs(training),
            BalanceReports(training, times),
            Validations(training, early),
        ]
        self._consecutive_non_finite = 0
        self._step_seconds = 0.0
        self._stuck: UserError | None = None  # why the last step was not taken

    def observe(self, *, first: StepObserver, last: Iterable[StepObserver]) -> None:
        """Add an observer that comes before all others, and some that come after them."""
        self._observers = [first, *self._observers, *last]
        self._checkpoints.observers = self._observers

    def train(self, position: DataPosition, stage: Stage, stops: StopRequest) -> tuple[DataPosition, EndReason]:
        """Train from a position to the end of the stage, and return where and why training stopped."""
        self._stage, self._stop = stage, stops
        pool = DecodePool(
            self._recipe.data.num_workers if self._encoder.decodes(self.data.table) else 0,
            self._recipe.data.decode_timeout,
            # The wait is part of a step, which may take only so long.
            patience_seconds=min(AWAY_SECONDS, self._recipe.parallel.step_seconds / 2),
            leaves=lambda: stops.is_asked,
        )
        with contextlib.closing(pool):
            end = self._train_steps(position, pool) if self._catch_up(position, pool) else position
            reason: EndReason = "finished"
            if self._stuck is not None and not stops.agree():
                # Where nothing was trained, the next start would come no further.
                if end.global_step == position.global_step or not isinstance(self._stuck, StorageAway):
                    raise self._stuck
                logger.warning("%s", self._stuck)
                reason = "storage"
            elif stops.is_agreed or not stage.ends_run(end.global_step):
                # A signal may have come to one rank since its last step began.
                reason = "signal" if stops.agree() else "stage"
            self._end(end, pool, reason)
        return end, reason

    def _catch_up(self, position: DataPosition, pool: DecodePool) -> bool:
        """Let observers measure what a signal left no time for, and begin; return whether a step is to be trained."""
        stage, now = self._stage, self._pause(position, pool)
        now = replace(now, is_new=stage.step is None, begins_stage=stage.begins)
        with self._stop.pause():
            if not now.is_new and not now.begins_stage:
                self._each(lambda observer: observer.make_up(now))
            is_done = now.is_over()
            if is_done:
                self._tell_that_nothing_is_left(now)
            self._checkpoints.make_up(is_last=is_done)
            self._each(lambda observer: observer.begin(now))
        self._state.observed.clear()
        return not (is_done or self._stop.is_agreed)

    def _train_steps(self, position: DataPosition, pool: DecodePool) -> DataPosition:
        """Train step after step, and return where training stopped."""
        begun, data, encode = position.global_step, self._recipe.data, self._recipe.encode
        batches = EncodePrefetcher(  # from the position to the end of training, across epochs
            self._encoder.read(self._source.requests_from(position), pool, data.prefetch_budget_bytes),
            self._examples.encode,
            self._world.device,
            is_ahead=encode.store if encode.ahead == "auto" else encode.ahead,
        )
        self._begin_segment(position)
        while not (self._is_done(position) or self._stop.is_agreed):
            if position.at_end:
                with log.stage("planning the next epoch"), self._stop.pause():
                    position, empty = next_epoch(self.data, position.spec, position)
                resume.log_empty(empty)
                if self._is_done(position):  # no clip is drawn in any of the epochs that were left
                    self._after_step(position, pool, None)
                else:
                    self._begin_segment(position)
                continue
            position, flags = self._take_step(position, batches)
            if self._stuck is not None:
                break
            # A signal to any rank stops all ranks after the same step.
            self._stop.is_agreed = flags.stop and not self._is_done(position)
            self._after_step(position, pool, flags)
        if self._stuck is not None and position.global_step > begun:
            self._world.mark("after it", position.global_step, limited=False)
            self._checkpoints.save_last(position, {}, is_over=False)
        if self._world.is_main and not position.at_end:
            self._log.records.end(position)
        return position

    def _each(self, call: Callable[[StepObserver], None]) -> None:
        for observer in self._observers:
            call(observer)

    def _pause(self, position: DataPosition, pool: DecodePool) -> Pause:
        return Pause(position, pool, lambda: self._is_done(position))

    def _is_done(self, position: DataPosition) -> bool:
        return self._early.is_over or progress.is_done(self._recipe.train, position)

    def _take_step(self, position: DataPosition, batches: EncodePrefetcher) -> tuple[DataPosition, StepFlags]:
        """Train the step at a position, log it, and raise if too much has failed to go on.

        Returns the position after the step, and the flags of all ranks. If clips are not read for a reason that is not
        theirs, no step is taken, and `_stuck` says why.
        """
        began = time.monotonic()
        step = position.global_step
        degree = self._world.sequence_degree
        self._world.mark(
            "waiting for clips", step + 1, lambda rank: self._source.paths(position, *divmod(rank, degree))
        )
        if self._recipe.train.skips(step + 1):
            result = StepResult.skipped(self._train_step.set_rate(step))  # the source omits it too
        else:
            self._each(lambda observer: observer.before_step(step + 1))
            result = self._run_step(position, batches, self._checkpoints.flags(stop=self._stop.is_asked))
        self._step_seconds = time.monotonic() - began
        if result.flags.stuck:
            reasons: list[Any] = self._world.gather(result.stops)
            self._stuck = next(filter(None, reasons))
            return position, result.flags
        failed: list[FailedClip] = []
        if result.clips + result.repeats < sum(position.plan.real_in(position.plan_step)):
            of_ranks: list[Any] = self._world.gather(failures.failed_clips(result.batches))
            failed = list(itertools.chain(*of_ranks))
        trained = TrainedStep(position, result, failed, self._step_seconds, batches.waited_seconds())
        self._each(lambda observer: observer.after_step(trained))
        after = _advance(position, result)
        failures.require_few(
            after.counts.failed,
            after.counts.planned,
            self._recipe.data.max_decode_failures,
            field="data.max_decode_failures",
            remedy=f"see {self._folder.coverage_folder} for files and reasons; repair them or raise the limit",
        )
        self._require_finite(after.global_step, result)
        return after, result.flags

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
            bucket, file = self.data.table.buckets[batches.request.bucket], self._folder.snapshot_file(world.rank)
            with out_of_memory.naming_bucket(bucket, world.device, file, what=f"a micro-batch of step {step + 1}"):
                raise

    def _after_step(self, position: DataPosition, pool: DecodePool, flags: StepFlags | None) -> None:
        """End the epoch, let observers measure, and save, each if it is due.

        Whoever sent a signal kills this process soon: then nothing but a save has time, and the next start makes up the rest.
        `flags` are those of all ranks in the step before, None if epochs passed without a step. A loss of an earlier step
        does not belong to this step's checkpoint.
        """
        step, now = position.global_step, self._pause(position, pool)
        # Validation, saves and previews last as long as they do.
        self._world.mark("after it", step, limited=False)
        if position.at_end:
            self._log.epoch_ends(position)
        metrics: dict[str, float] = {}
        with self._stop.pause():
            for observer in self._observers:
                metrics |= observer.metrics(now)
            if now.is_over() or self._stop.is_agreed:
                self._checkpoints.save_last(position, metrics, is_over=now.is_over())
            elif flags is not None:
                # The step during which a signal comes is not the last one, nor is a pause: a step still follows.
                wait_seconds = self._step_seconds + max(self._step_seconds, self._stop.most_seconds)
                self._checkpoints.after_step(position, metrics, flags, wait_seconds)
            now = replace(now, is_saved=self._checkpoints.saved_step == step)
            self._each(lambda observer: observer.after_save(now))
        if self._stop.is_agreed:  # since what comes after a save was cut short
            self._checkpoints.save_last(position, metrics, is_over=now.is_over())

    def _begin_segment(self, position: DataPosition) -> None:
        """Record and log the plan of an epoch, or of the rest of one."""
        if self._recipe.train.compile:
            self._compiled.prefer(compiled_graphs.choose(self.data, position.plan).compiled)
        if self._world.is_main:
            self._log.records.begin(position, self._checkpoints.epochs_in_use())
        self._log.epoch_begins(position)
        if not position.plan.num_steps:  # a resume found that the clips left in the epoch no longer exist
            self._log.epoch_ends(position)

    def _tell_that_nothing_is_left(self, now: Pause) -> None:
        """Tell why a start trains nothing, where a run was at its end."""
        position, step = now.position, now.step
        if now.is_new:
            raise no_steps(self.data)
        if not position.plan.num_steps:
            self._begin_segment(position)
        if not self._stage.ends_run(step):
            logger.info("stage %s is at its end; what came after its last save is made up", position.stage.name)
        elif self._early.is_over:
            logger.info("nothing left to train at step %d: %s; raise it to train on", step, self._early)
        elif name := position.stage.name:
            remedy = "raise that or train.max_steps, or add a stage"
            logger.info("nothing left to train at step %d; stage %s is at its end: %s", step, name, remedy)
        else:
            keys = [f"train.{key}" for key in progress.reached(self._recipe.train, position)]
            logger.info("nothing left to train at step %d; raise %s", step, " and ".join(keys))

    def _end(self, position: DataPosition, pool: DecodePool, reason: EndReason) -> None:
        self._each(lambda observer: observer.end(self._pause(position, pool)))
        self._log.event("stop", step=position.global_step, reason=reason)
        if reason in ("signal", "storage"):
            logger.info("stopped after step %d; the same command goes on", position.global_step)
        if reason == "finished":
            part = components.family_config(self._recipe.model).network.part
            for line in exports_folder.how_to_use(self._checkpoints.exported, self._recipe.lora, part):
                logger.info(line)

    def _require_finite(self, step: int, result: StepResult) -> None:
        """Raise after too many consecutive steps whose loss or gradient was not finite."""
        self._consecutive_non_finite = 0 if result.finite else self._consecutive_non_finite + 1
        train = self._recipe.train
        limit = 1 if train.non_finite == "stop" else train.max_non_finite
        if self._consecutive_non_finite < limit:
            return
        origin = None if result.blame is None else result.blame.origin
        of_weights = origin is not None and origin.what == "weight"
        steps = f"{limit} consecutive steps, the last being {step}," if limit > 1 else f"step {step}"
        raise UserError(
            f"{steps} had a loss or gradient that is not finite, {result.blame}",
            code="non-finite",
            field="model.weights" if of_weights else "train.learning_rate",
            remedy="begin with other weights, or resume from an earlier checkpoint with --resume STEP"
            if of_weights
            else "lower it or lengthen train.warmup_steps, then resume from an earlier checkpoint with --resume STEP; to train on "
            'past such steps, set train.non_finite = "skip" and raise train.max_non_finite',
        )


def _advance(position: DataPosition, result: StepResult) -> DataPosition:
    """Return the position after a step, with its clips counted."""
    # Trained clips are counted, never derived from the plan: a lost clip must show as a gap in the epoch's sums.
    trained, repeated, skipped = result.clips, result.repeats, 0
    if not result.applied:
        trained, repeated, skipped = 0, 0, position.plan.planned_in(position.plan_step) - result.failed
    counts = position.counts.add(trained, result.failed, skipped, repeated)
    return replace(position, plan_step=position.plan_step + 1, global_step=position.global_step + 1, counts=counts)
