"""Train a recipe: build everything, then loop over steps, validate, preview and save; the same on one process and many."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from reelworks.catalog.scan import ScanProgress
from reelworks.checkpoint.async_save import Background
from reelworks.checkpoint.mirror import fetch
from reelworks.checkpoint.mirror.mirror import Mirror
from reelworks.checkpoint.mirror.remote import RemoteFilesystem
from reelworks.checkpoint.store import CheckpointStore
from reelworks.core.errors import UserError
from reelworks.data import empty_epoch, loader
from reelworks.data.loader import MicroBatch, StepSource
from reelworks.data.position import DataPosition, next_epoch
from reelworks.distributed import mesh
from reelworks.distributed.mesh import World
from reelworks.encoders.encoders import LiveEncoder
from reelworks.generate.pipeline import GenerateOptions
from reelworks.media.decode_pool import DecodePool
from reelworks.models.api import DenoiserInputs
from reelworks.models.lora import reading
from reelworks.models.lora.base_model import Base
from reelworks.precision.boundary import DtypeBoundary
from reelworks.recipe import dataset, recipe_file
from reelworks.recipe.dataset import RecipeData
from reelworks.recipe.recipe import Recipe
from reelworks.run import lock, records
from reelworks.run.folder import RunFolder
from reelworks.schedule.plan import PlanSpec
from reelworks.train import build, lr_schedule, optimizer_names, resume, sample_logging
from reelworks.train.checkpointing import Keeper, Saver
from reelworks.train.preflight import dry_run
from reelworks.train.progress import is_done, last_step
from reelworks.train.resume import RunOptions
from reelworks.train.run_logger import Journal, Recorder, Seen
from reelworks.train.sample_logging import Previewer
from reelworks.train.segment_records import RecordKeeper
from reelworks.train.signals import Signals
from reelworks.train.state import TrainState
from reelworks.train.step import StepFlags, StepResult, TrainStep
from reelworks.train.validation import Validator


@dataclass
class Loop:
    """Everything that the loop ties together."""

    recipe: Recipe
    run: RunFolder
    data: RecipeData
    feed: StepSource
    stepper: TrainStep
    validator: Validator
    previewer: Previewer
    keeper: Keeper
    saver: Saver
    tell: Recorder
    journal: Journal
    signals: Signals = field(default_factory=Signals)
    _measured: dict[str, float] = field(default_factory=dict)
    _measured_step: int | None = None
    _seconds: float = 0.0
    _skipped_in_a_row: int = 0

    def go(self, position: DataPosition, resumed: bool) -> str:
        """Train from a position to the end.

        Returns:
            Why it ended: "finished", or "signal".

        Raises:
            UserError: Too many clips fail, or no step can be applied any more.
        """
        recipe = self.recipe
        with ExitStack() as stack:
            pool = DecodePool(recipe.data.num_workers, recipe.data.decode_timeout)
            stack.callback(pool.close)
            stack.enter_context(self.signals.listening())
            self.saver.saved_step = position.global_step if resumed else None
            if self._is_done(position):
                if not resumed:
                    raise empty_epoch.no_steps(self.data)
                if not position.plan.steps:
                    self._begin(position)
                self._complete(position, pool)
                self.tell.event("stop", step=position.global_step, reason="finished")
                return "finished"
            if not resumed:
                self._validate(position, pool)
            source = loader.read_ahead(
                self.feed.rows(position),
                pool,
                recipe.data.prefetch_micro_batches,
            )
            self._begin(position)
            while not self._is_done(position):
                if position.at_end:
                    position = self._next_epoch(position)
                    if self._is_done(position):  # the epochs that were left draw no clip
                        self._after(position, pool)
                        break
                position, votes = self._step(position, source)
                self._after(position, pool, votes)
                if votes.stop and not self._is_done(position):
                    self._record_end(position)
                    self.saver.last(position, self._metrics_of(position))
                    self.tell.event("stop", step=position.global_step, reason="signal")
                    return "signal"
            self._record_end(position)
            self.tell.event("stop", step=position.global_step, reason="finished")
        return "finished"

    def _record_end(self, position: DataPosition) -> None:
        """Record how far the segment went, where training stops within an epoch."""
        if self.keeper.world.is_main and not position.at_end:
            self.journal.records.end(position)

    def _complete(self, position: DataPosition, pool: DecodePool) -> None:
        """Do what a run that was killed behind its last save still owes."""
        step = position.global_step
        self.tell.say(f"nothing left to train at step {step}; raise train.max_steps or max_epochs")
        if not self.keeper.has_metrics(step) and (measured := self._validate(position, pool)):
            self.keeper.record_metrics(step, measured)
        if not self.previewer.exist(step):
            self.previewer.run(step, self.tell)

    def _is_done(self, position: DataPosition) -> bool:
        return is_done(self.recipe.train, position)

    def _begin(self, position: DataPosition) -> None:
        if self.keeper.world.is_main:
            self.journal.records.begin(position, self.keeper.epochs_in_use())
        self.journal.epoch_begins(position)
        if not position.plan.steps:  # a resume found that all that was left of the epoch is gone
            self.journal.epoch_ends(position)

    def _next_epoch(self, position: DataPosition) -> DataPosition:
        position, empty = next_epoch(self.data, position.spec, position)
        for epoch in empty:
            self.tell.say(f"epoch {epoch}: no clip was drawn")
        if not self._is_done(position):
            self._begin(position)
        return position

    def _step(self, position: DataPosition, source: Iterator[MicroBatch]) -> tuple[DataPosition, StepFlags]:
        began = time.monotonic()
        seen = Seen()
        step = position.global_step
        if self.recipe.train.skips(step + 1):
            result = StepResult.skipped(self.stepper.set_rate(step))
        else:
            result = self.stepper.run(
                seen.watch(source),
                position.plan,
                position.row,
                step,
                self.saver.votes(stop=bool(self.signals.name)),
            )
        planned = position.plan.planned_in(position.row)
        # Counted, not derived: a clip that got lost on the way must not balance the account.
        trained, skipped = (result.clips, 0) if result.applied else (0, planned - result.failed)
        self._seconds = time.monotonic() - began
        self.journal.step(position, step + 1, result, seen, self._seconds)
        repeated = result.repeated if result.applied else 0
        counts = position.counts.add(trained, result.failed, skipped, repeated)
        position = replace(position, row=position.row + 1, global_step=step + 1, counts=counts)
        self._check(position, result)
        return position, result.votes

    def _check(self, position: DataPosition, result: StepResult) -> None:
        counts = position.counts
        if counts.failed > self.recipe.data.max_decode_failures * counts.planned:
            raise UserError(
                f"{counts.failed} of the epoch's {counts.planned} clips could not be decoded",
                code="too-many-decode-failures",
                field="data.max_decode_failures",
                value=self.recipe.data.max_decode_failures,
                remedy=f"see {self.run.coverage_folder} for files and reasons; mend them or raise the limit",
            )
        self._refuse_non_finite(position.global_step, result)

    def _refuse_non_finite(self, step: int, result: StepResult) -> None:
        """End where going on is hopeless, or not wanted."""
        self._skipped_in_a_row = self._skipped_in_a_row + 1 if not result.finite else 0
        train = self.recipe.train
        limit = 1 if train.non_finite == "stop" else train.max_non_finite
        if self._skipped_in_a_row < limit:
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

    def _after(self, position: DataPosition, pool: DecodePool, votes: StepFlags | None = None) -> None:
        """Do what is due at a step's edge: validation, preview, checkpoint, the epoch's account."""
        step, done = position.global_step, self._is_done(position)
        if position.at_end:
            self.journal.epoch_ends(position)
        # Before the save, so that a checkpoint knows its loss.
        if done or _due(self.recipe.validation.every_steps, step):
            self._validate(position, pool)
        if done:
            self.saver.last(position, self._metrics_of(position))
        elif votes is not None:
            self.saver.after_step(position, self._metrics_of(position), votes, self._seconds)
        if done or _due(self.recipe.samples.every_steps, step):
            self.previewer.run(step, self.tell)

    def _validate(self, position: DataPosition, pool: DecodePool) -> dict[str, float]:
        began = time.monotonic()
        result = self.validator.run(pool)
        self._measured = {}
        if result is not None:
            self._measured = {"validation/loss": result.loss}
            self._measured_step = position.global_step
            self.journal.validation(position.global_step, result, time.monotonic() - began)
        return self._measured

    def _metrics_of(self, position: DataPosition) -> dict[str, float]:
        """Return what was measured at this very step: a loss of another one is not this checkpoint's."""
        return self._measured if self._measured_step == position.global_step else {}


def _due(every: int | None, step: int) -> bool:
    return every is not None and step % every == 0


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

    Under torchrun each process calls it and joins the others.

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
        optimizer_names.require(recipe.train.optimizer, recipe.parallel.strategy, world.size)
        threads = resume.set_threads(recipe, world)
        folder = RunFolder(Path(recipe.output))
        check, place = _not_held, None
        if world.is_main:
            check = stack.enter_context(lock.hold(folder.lock_file, say=print)).check
            if recipe.checkpoints.mirror is not None:
                place = RemoteFilesystem.open(recipe.checkpoints.mirror)
                # Before the scan, since the catalog may come from there too.
                fetch.bring_back(place, folder, options.resume, print)
            dataset.scan_recipe(recipe, on_scan)
        world.wait()
        data = replace(RecipeData.open(recipe), run=folder)
        info, said = resume.open_folder(recipe, folder, world)
        spec = resume.spec_of(data, info, world)
        if recipe.train.lacks_end:
            raise lr_schedule.no_end(recipe.train, data.plan(spec, 0).steps)
        said += data.chosen.lines() if data.chosen else []
        return _train(_Start(options, world, folder, data, spec, info["id"], threads, said, check, place))


@dataclass(frozen=True)
class _Start:
    """Everything that is resolved before the model is built.

    Attributes:
        data: With the recipe, its buckets chosen.
        said: What to tell of it.
        check: Raises where another process took the run over.
        place: On the main rank, where checkpoints are mirrored to.
    """

    options: RunOptions
    world: World
    folder: RunFolder
    data: RecipeData
    spec: PlanSpec
    run_id: str
    threads: int
    said: list[str]
    check: Callable[[], None]
    place: RemoteFilesystem | None


@dataclass(frozen=True)
class _Model:
    """The model that is trained, sharded and with its optimizer; its encoder, and the base of its LoRA."""

    boundary: DtypeBoundary[DenoiserInputs]
    encoder: LiveEncoder
    state: TrainState
    base: Base | None


def _train(start: _Start) -> int:
    recipe, world, folder, data = start.data.recipe, start.world, start.folder, start.data
    previews = sample_logging.options(data)
    store = CheckpointStore(folder.checkpoints_folder, start.check)
    keeper = Keeper(store, folder, recipe, start.run_id, world)
    step = keeper.find(start.options.resume)
    model = _build(start, resumed=step is not None)
    keeper = replace(keeper, base=model.base)
    position, found = resume.find(data, start.spec, folder, keeper, step, model.state, start.options)
    _agree(world, position)
    bucket = dry_run.largest(data.table, set(position.plan.bucket.tolist()) or {0})
    dry_run.rehearse(model.boundary.denoiser, model.encoder, model.state, bucket)
    said = [
        *found,
        *(_of_another_base(recipe, model.base) if step is None else ()),
        *start.said,
        *keeper.look_ahead(model.state, position),
    ]
    kept = ""
    if world.is_main:
        if step is not None:
            said += keeper.abandon_after(position.global_step)
            records.reopen(
                folder, position.global_step, None if is_done(recipe.train, position) else position.key
            )
        kept = folder.keep_recipe(recipe_file.dump(recipe))
        said += resume.threads_changed(folder, start.threads)
        said += resume.write(folder, data, position, world, start.threads)
    # The plan of what an epoch has left tells nothing of the length of others.
    total = recipe.train.max_steps if position.segment else last_step(recipe.train, position)
    with Recorder(folder, main=world.is_main, total_steps=total, first_step=position.global_step) as tell:
        tell.event(
            "start",
            step=position.global_step,
            world_size=world.size,
            micro_batches_per_step=start.spec.micro_batches_per_step,
            same_bucket_run=start.spec.same_bucket_run,
            threads=start.threads,
            device=str(world.device),
            recipe=kept,
            resumed_from=step,
        )
        for line in said:
            tell.say(line)
        mirror = _mirror(start, tell, step)
        try:
            book = RecordKeeper(folder, data, kept, tell.say)
            ended = _loop(start, model, previews, keeper, tell, book, mirror).go(position, step is not None)
        finally:
            if mirror is not None and (failure := mirror.close()):
                tell.say(f"warning: {failure}")
    return EXIT_REQUEUE if ended == "signal" else 0


def _build(start: _Start, *, resumed: bool) -> _Model:
    recipe, world = start.data.recipe, start.world
    build.require_sources(recipe, resumed=resumed)
    denoiser = build.denoiser(recipe, world.home, resumed=resumed)
    encoder = build.encoder(recipe, world.device)
    dry_run.audit_shapes(denoiser, encoder, start.data.table, world)
    dry_run.require_encoders(encoder)
    mesh.shard(
        denoiser.module, denoiser.sharding().blocks, denoiser.contract, world, recipe.parallel.strategy
    )
    return _Model(DtypeBoundary(denoiser), encoder, TrainState.start(denoiser, recipe.train), denoiser.base)


def _of_another_base(recipe: Recipe, base: Base | None) -> list[str]:
    """Warn of a LoRA to begin with that was trained on other weights."""
    file = recipe.lora.weights if recipe.lora is not None else None
    warning = reading.of_another_base(file, base) if file is not None and base is not None else None
    return [] if warning is None else [warning]


def _mirror(start: _Start, tell: Recorder, resumed_from: int | None) -> Mirror | None:
    config = start.data.recipe.checkpoints.mirror
    if start.place is None or config is None:
        return None
    mirror = Mirror(start.place, start.folder, start.run_id, config, tell)
    if resumed_from is not None:  # whose copy a kill may have cut off
        mirror.offer(resumed_from)
    return mirror


def _loop(
    start: _Start,
    model: _Model,
    previews: GenerateOptions | None,
    keeper: Keeper,
    tell: Recorder,
    book: RecordKeeper,
    mirror: Mirror | None,
) -> Loop:
    """Tie together all that a step needs and does."""
    recipe, world, folder, data = start.data.recipe, start.world, start.folder, start.data
    boundary, encoder, state = model.boundary, model.encoder, model.state
    objective, seed = recipe.objective, recipe.seed
    train = recipe.train
    feed = StepSource(data, world.rank, world.size, train.max_steps, train.max_epochs, train.skips)
    background = Background(int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    return Loop(
        recipe,
        folder,
        data,
        feed,
        TrainStep(boundary, encoder, state, data.table, world, recipe),
        Validator(
            boundary,
            encoder,
            state,
            world,
            feed,
            data.held_out(),
            recipe.validation.timesteps,
            objective,
            seed,
        ),
        Previewer(recipe, boundary, encoder, state, world, folder, previews),
        keeper,
        Saver(recipe.checkpoints, folder, keeper, data, state, tell, background, start.check, mirror),
        tell,
        Journal(folder, data, world, tell, book, recipe.train.log_every, start.options.debug),
    )


def _not_held() -> None:
    """The main rank holds the run's lock for all."""


def _agree(world: World, position: DataPosition) -> None:
    """Refuse to train where ranks planned differently, as with a catalog that one machine has an older copy of.

    Raises:
        UserError: On all ranks alike.
    """
    plans = world.gather(position.plan.digest())
    others = [str(rank) for rank, plan in enumerate(plans) if plan != plans[0]]
    if others:
        raise UserError(
            f"rank {', '.join(others)} planned another epoch than rank 0",
            code="ranks-planned-differently",
            field="catalog",
            remedy="let all machines read the same catalog and the same files that the recipe names, with the same "
            "version of reelworks",
        )
