"""Train a recipe, the same on one process and on many: `run` opens what is needed, `Trainer` loops over steps.

An epoch is planned as rows. A row is an optimizer step: the micro-batches of all ranks in it. Where the data change in
the middle of an epoch, the rest is planned anew, as another segment of it. A position is the row to train next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from reelworks.catalog.scan import ScanProgress
from reelworks.core import log
from reelworks.core.errors import UserError
from reelworks.core.log import logger
from reelworks.data import loader
from reelworks.data.loader import MicroBatch, StepSource
from reelworks.data.position import DataPosition, next_epoch, no_steps
from reelworks.distributed import mesh
from reelworks.distributed.mesh import World
from reelworks.encoders.encoders import LiveEncoder
from reelworks.generate.pipeline import GenerateOptions
from reelworks.media.decode import DecodePool
from reelworks.models.api import DenoiserInputs
from reelworks.models.lora.base_model import Base
from reelworks.precision.boundary import DtypeBoundary
from reelworks.recipe import dataset, recipe_file
from reelworks.recipe.dataset import RecipeData
from reelworks.recipe.recipe import Recipe
from reelworks.run.folder import RunFolder
from reelworks.train import (
    build,
    checkpointing,
    lr_schedule,
    open_run,
    optimizer_names,
    resume,
    run_logger,
    sample_logging,
)
from reelworks.train.checkpointing import CheckpointManager
from reelworks.train.open_run import OpenRun
from reelworks.train.preflight import dry_run
from reelworks.train.progress import is_done, total_steps
from reelworks.train.resume import RunOptions
from reelworks.train.run_logger import RunLogger
from reelworks.train.sample_logging import Previewer
from reelworks.train.signals import Signals
from reelworks.train.state import TrainState
from reelworks.train.step import StepResult, TrainStep
from reelworks.train.validation import Validator

# EX_TEMPFAIL: saved on a signal; a scheduler may requeue the same command.
EXIT_REQUEUE = 75


def train(
    recipe: Recipe | str | Path,
    *,
    overrides: Sequence[str] = (),
    resume: str = "auto",
    restart_data: bool = False,
) -> int:
    """Train a recipe; the same call again resumes.

    Under torchrun each process calls it and joins the others. Lines about its progress go to the logger `reelworks`, and
    are printed where that has no handler.

    Args:
        recipe: The recipe, or its TOML file.
        overrides: Texts `a.b=value` that change what the file says.
        resume: "auto" (the newest good checkpoint), "never", or a step.
        restart_data: Begin the data again, and keep weights and step count.

    Returns:
        0 when finished, `EXIT_REQUEUE` when saved on a signal.

    Raises:
        UserError: Anything a person can mend.
    """
    if not isinstance(recipe, Recipe):
        recipe = recipe_file.load(Path(recipe), overrides)
    return run(recipe, RunOptions(resume=resume, restart_data=restart_data))


def run(recipe: Recipe, options: RunOptions, on_scan: Callable[[ScanProgress], None] | None = None) -> int:
    """Train a recipe in this process, and in those that the launcher started beside it.

    Args:
        recipe: What to train.
        options: What the command line adds.
        on_scan: Told how far the scan is.

    Returns:
        The exit code: 0 when finished, `EXIT_REQUEUE` when saved on a signal.

    Raises:
        UserError: Anything a person can mend.
    """
    if options.weights_only and options.load is None:
        raise UserError(
            "there is nothing to take weights from",
            code="nothing-to-load",
            field="--weights-only",
            remedy="add --load RUN|CHECKPOINT",
        )
    with mesh.join(offload=recipe.parallel.offload) as world, ExitStack() as stack:
        stack.enter_context(log.to_terminal(speaks=world.is_main))
        optimizer_names.require(recipe.train.optimizer, recipe.parallel.strategy, world.size)
        threads = resume.set_threads(recipe)

        # Open the run folder, in which no other process writes as long as this one trains.
        folder_lock = stack.enter_context(open_run.lock_folder(recipe, options.resume, world))
        # Open the data. The recipe has its buckets from here on, where it left them open.
        data = _open_data(recipe, world, on_scan)
        recipe = data.recipe
        this_run = open_run.open_run(recipe, folder_lock, world)
        spec = open_run.plan_spec(data, this_run)
        if recipe.train.lacks_end:
            raise lr_schedule.no_end(recipe.train, data.plan(spec, 0).steps)
        previews = sample_logging.options(data)

        # Build the model.
        resumed_from = resume.pick(this_run, recipe, options.resume)
        resumed = resumed_from is not None
        model = TrainedModel.build(data, world, resumed=resumed)

        # Resume: load the weights of the checkpoint, if there is one, and find the place in the data that belongs to them.
        position = resume.restore(this_run, data, spec, options, step=resumed_from, state=model.state, base=model.base)
        resume.require_same_plan(world, position)
        _rehearse(model, data, position)
        this_run.step_shape.log_change()
        for line in data.chosen.lines() if data.chosen else []:
            logger.info(line)
        checkpointing.try_disk(this_run, recipe, model.state, position)
        recipe_name = ""
        if world.is_main:
            recipe_name = resume.prepare_folder(this_run, data, position, threads=threads, resumed=resumed)

        # Loop over steps.
        run_log = stack.enter_context(
            RunLogger(
                this_run.folder,
                data,
                world,
                recipe_name=recipe_name,
                first_step=position.global_step,
                total_steps=total_steps(recipe.train, position),
                debug=options.debug,
            )
        )
        run_log.start(spec, threads=threads, resumed_from=resumed_from)
        mirror = stack.enter_context(checkpointing.mirroring(this_run, recipe, run_log, resumed_from))
        checkpoints = CheckpointManager(
            run=this_run,
            data=data,
            state=model.state,
            base=model.base,
            log=run_log,
            mirror=mirror,
            resumed_from=resumed_from,
        )
        trainer = Trainer(run=this_run, data=data, model=model, previews=previews, checkpoints=checkpoints, log=run_log)
        ended = trainer.train(position, resumed=resumed)
    return EXIT_REQUEUE if ended == "signal" else 0


def _open_data(recipe: Recipe, world: World, on_scan: Callable[[ScanProgress], None] | None) -> RecipeData:
    """Scan on the main rank, and open what was found on all."""
    if world.is_main:
        dataset.scan_recipe(recipe, on_scan)
    world.wait()
    return replace(RecipeData.open(recipe), run=RunFolder(Path(recipe.output)))


@dataclass(frozen=True)
class TrainedModel:
    """The network that is trained, sharded and with its optimizer, and the encoders in front of it.

    Attributes:
        boundary: The network, which casts what it is given.
        state: Its weights, their average, and the optimizer.
        base: The weights below its LoRA, if it trains one.
    """

    boundary: DtypeBoundary[DenoiserInputs]
    encoder: LiveEncoder
    state: TrainState
    base: Base | None

    @classmethod
    def build(cls, data: RecipeData, world: World, *, resumed: bool) -> TrainedModel:
        """Build a recipe's model, refuse dtypes that do not fit, and shard it. Collective."""
        recipe = data.recipe
        build.require_sources(recipe, resumed=resumed)
        denoiser = build.denoiser(recipe, world.home, resumed=resumed)
        encoder = build.encoder(recipe, world.device)
        dry_run.audit_shapes(denoiser, encoder, data.table, world)
        dry_run.require_encoders(encoder)
        blocks = denoiser.sharding().blocks
        mesh.shard(denoiser.module, blocks, denoiser.contract, world, recipe.parallel.strategy)
        state = TrainState.start(denoiser, recipe.train)
        return cls(DtypeBoundary(denoiser), encoder, state, denoiser.base)


def _rehearse(model: TrainedModel, data: RecipeData, position: DataPosition) -> None:
    """Run the largest bucket that is planned, so that memory suffices before the first step or never."""
    planned = set(position.plan.bucket.tolist()) or {0}  # a plan is empty where nothing is left of the epoch
    bucket = dry_run.largest(data.table, planned)
    dry_run.rehearse(model.boundary.denoiser, model.encoder, model.state, bucket)


class Trainer:
    """Loops over steps: takes each, logs and counts it, and then validates, saves and previews where it is time to.

    Attributes:
        data: What is trained on.
    """

    def __init__(
        self,
        *,
        run: OpenRun,
        data: RecipeData,
        model: TrainedModel,
        previews: GenerateOptions | None,
        checkpoints: CheckpointManager,
        log: RunLogger,
    ) -> None:
        """Tie together what a step needs and does.

        Args:
            run: The run folder.
            data: What is trained on.
            model: What is trained.
            previews: How clips are generated on schedule; None for none.
            checkpoints: Saves the model.
            log: Told of all that happens.
        """
        recipe, world = data.recipe, run.world
        boundary, encoder, state = model.boundary, model.encoder, model.state
        self.data = data
        self._recipe, self._run, self._world = recipe, run, world
        self._checkpoints, self._log = checkpoints, log
        self._source = StepSource(
            data,
            rank=world.rank,
            world=world.size,
            max_steps=recipe.train.max_steps,
            max_epochs=recipe.train.max_epochs,
            skips=recipe.train.skips,
        )
        self._train_step = TrainStep(
            boundary=boundary, encoder=encoder, state=state, table=data.table, world=world, recipe=recipe
        )
        self._validator = Validator(
            boundary=boundary,
            encoder=encoder,
            state=state,
            world=world,
            source=self._source,
            held_out=data.held_out(),
            times=recipe.validation.timesteps,
            objective=recipe.objective,
            seed=recipe.seed,
        )
        self._previewer = Previewer(
            recipe=recipe,
            boundary=boundary,
            encoder=encoder,
            state=state,
            world=world,
            run_folder=run.folder,
            options=previews,
        )
        self._non_finite_in_a_row = 0

    def train(self, position: DataPosition, *, resumed: bool) -> str:
        """Train from a position to the end.

        Returns:
            Why it ended: "finished", or "signal".

        Raises:
            UserError: Too many clips fail, or no step can be applied any more.
        """
        config = self._recipe.data
        with ExitStack() as stack:
            pool = DecodePool(config.num_workers, config.decode_timeout)
            stack.callback(pool.close)
            signals = stack.enter_context(Signals().listening())
            if self._is_done(position):
                self._complete(position, pool, resumed=resumed)
                return self._stop(position, "finished")

            if not resumed:
                self._validate(position, pool)  # of untrained weights, for comparison
            # Micro-batches from here to the end of training: epochs follow each other in it, planned as `_next_epoch` does.
            batches = loader.read_ahead(self._source.rows(position), pool, config.prefetch_micro_batches)
            self._begin_segment(position)
            while not self._is_done(position):
                if position.at_end:
                    position = self._next_epoch(position)
                    if self._is_done(position):  # the epochs that were left draw no clip
                        self._after_step(position, pool, None)
                    continue
                taken = self._take_step(position, batches, stop=bool(signals.name))
                position = taken.position
                metrics = self._after_step(position, pool, taken)
                # A signal to any rank stops all of them, behind the same step.
                if taken.result.flags.stop and not self._is_done(position):
                    self._end_record(position)
                    self._checkpoints.save_last(position, metrics)
                    return self._stop(position, "signal")
            self._end_record(position)
            return self._stop(position, "finished")

    def _is_done(self, position: DataPosition) -> bool:
        return is_done(self._recipe.train, position)

    def _take_step(self, position: DataPosition, batches: Iterator[MicroBatch], *, stop: bool) -> _TakenStep:
        """Take the step at a position, log and count it, and refuse to go on where that is hopeless.

        Args:
            position: Of the row that is trained.
            batches: Micro-batches of this rank from that row on.
            stop: True if this rank was asked to save and leave.
        """
        began = time.monotonic()
        step = position.global_step
        noted: list[MicroBatch] = []
        if self._recipe.train.skips(step + 1):
            result = StepResult.skipped(self._train_step.set_rate(step))  # the source leaves its row out too
        else:
            result = self._train_step.run(
                run_logger.note(loader.one_step(batches), noted),
                plan=position.plan,
                row=position.row,
                step=step,
                flags=self._checkpoints.flags(stop=stop),
            )
        seconds = time.monotonic() - began
        self._log.step(position, result, noted, seconds)
        position = _advance(position, result)
        self._require_few_failures(position)
        self._require_finite(position.global_step, result)
        return _TakenStep(position, result, seconds)

    def _after_step(self, position: DataPosition, pool: DecodePool, taken: _TakenStep | None) -> dict[str, float]:
        """Do what is due between two steps: the epoch's account, validation, checkpoint, preview.

        Args:
            position: Where to go on.
            pool: Decodes held-out clips.
            taken: The step before; None where epochs passed without one.

        Returns:
            What was measured here: a loss of another step is not this checkpoint's.
        """
        step, done = position.global_step, self._is_done(position)
        metrics: dict[str, float] = {}
        if position.at_end:
            self._log.epoch_ends(position)
        # Before the save, so that a checkpoint knows its loss.
        if done or _is_due(self._recipe.validation.every_steps, step):
            metrics = self._validate(position, pool)
        if done:
            self._checkpoints.save_last(position, metrics)
        elif taken is not None:
            self._checkpoints.after_step(position, metrics, taken.result.flags, taken.seconds)
        if done or _is_due(self._recipe.samples.every_steps, step):
            self._previewer.run(step, self._log)
        return metrics

    def _validate(self, position: DataPosition, pool: DecodePool) -> dict[str, float]:
        began = time.monotonic()
        result = self._validator.run(pool)
        if result is None:
            return {}
        self._log.validation(position.global_step, result, time.monotonic() - began)
        return {"validation/loss": result.loss}

    def _begin_segment(self, position: DataPosition) -> None:
        """Record and log the plan of an epoch, or of the rest of one."""
        if self._world.is_main:
            self._log.records.begin(position, self._checkpoints.epochs_in_use())
        self._log.epoch_begins(position)
        if not position.plan.steps:  # a resume found that all that was left of the epoch is gone
            self._log.epoch_ends(position)

    def _next_epoch(self, position: DataPosition) -> DataPosition:
        position, empty = next_epoch(self.data, position.spec, position)
        resume.log_empty(empty)
        if not self._is_done(position):
            self._begin_segment(position)
        return position

    def _complete(self, position: DataPosition, pool: DecodePool, *, resumed: bool) -> None:
        """Do what a run still owes that has nothing left to train, such as one that was killed behind its last save."""
        step = position.global_step
        if not resumed:
            raise no_steps(self.data)
        if not position.plan.steps:
            self._begin_segment(position)
        logger.info("nothing left to train at step %d; raise train.max_steps or max_epochs", step)
        if not self._checkpoints.has_metrics(step) and (metrics := self._validate(position, pool)):
            self._checkpoints.record_metrics(step, metrics)
        if not self._previewer.exist(step):
            self._previewer.run(step, self._log)

    def _end_record(self, position: DataPosition) -> None:
        """Record how far the segment went, where training stops within an epoch."""
        if self._world.is_main and not position.at_end:
            self._log.records.end(position)

    def _stop(self, position: DataPosition, reason: str) -> str:
        self._log.event("stop", step=position.global_step, reason=reason)
        return reason

    def _require_few_failures(self, position: DataPosition) -> None:
        counts, limit = position.counts, self._recipe.data.max_decode_failures
        if counts.failed > limit * counts.planned:
            raise UserError(
                f"{counts.failed} of the epoch's {counts.planned} clips could not be decoded",
                code="too-many-decode-failures",
                field="data.max_decode_failures",
                value=limit,
                remedy=f"see {self._run.folder.coverage_folder} for files and reasons; mend them or raise the limit",
            )

    def _require_finite(self, step: int, result: StepResult) -> None:
        """Refuse to go on after too many steps in a row whose loss or gradient was not finite."""
        self._non_finite_in_a_row = 0 if result.finite else self._non_finite_in_a_row + 1
        train = self._recipe.train
        limit = 1 if train.non_finite == "stop" else train.max_non_finite
        if self._non_finite_in_a_row < limit:
            return
        many = f"{limit} steps in a row, the last being {step}," if limit > 1 else f"step {step}"
        raise UserError(
            f"{many} had a loss or gradient that is not finite, {result.blame}",
            code="non-finite",
            field="train.learning_rate",
            value=train.learning_rate,
            remedy="lower it or lengthen train.warmup_steps, then resume from an earlier checkpoint "
            'with --resume STEP; to train on past such steps, set train.non_finite = "skip" and raise '
            "train.max_non_finite",
        )


class _TakenStep(NamedTuple):
    """A step that was taken, and where to go on."""

    position: DataPosition
    result: StepResult
    seconds: float


def _advance(position: DataPosition, result: StepResult) -> DataPosition:
    """Return the position behind a step, with its clips counted."""
    # Counted, not derived: a clip that got lost on the way must not balance the account.
    trained, repeated, skipped = result.clips, result.repeats, 0
    if not result.applied:
        trained, repeated, skipped = 0, 0, position.plan.planned_in(position.row) - result.failed
    counts = position.counts.add(trained, result.failed, skipped, repeated)
    return replace(position, row=position.row + 1, global_step=position.global_step + 1, counts=counts)


def _is_due(every: int | None, step: int) -> bool:
    return every is not None and step % every == 0
