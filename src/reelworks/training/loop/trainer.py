"""Train a recipe, on one process or many: `run` opens what each stage needs, and lets `Trainer` loop over its steps."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from reelworks.core import arguments, log
from reelworks.core.arguments import checked
from reelworks.core.log import logger
from reelworks.core.words import of_recipe
from reelworks.data.catalog.scan.scan import ScanProgress
from reelworks.data.checkpoint import listing
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.distributed import mesh
from reelworks.data.distributed.mesh import World
from reelworks.data.loader.position import DataPosition
from reelworks.data.loader.step_source import StepSource
from reelworks.data.run.folder import RunFolder
from reelworks.models.attention import attention
from reelworks.training.encoding import stored_batches
from reelworks.training.encoding.encode_worker import Progress
from reelworks.training.loop import checkpointing, open_run, rendezvous, resume, stages, start
from reelworks.training.loop.checkpointing import CheckpointManager
from reelworks.training.loop.launch import EXIT_REQUEUE
from reelworks.training.loop.open_run import FolderLock
from reelworks.training.loop.request import TrainRequest
from reelworks.training.loop.stages import Stage
from reelworks.training.loop.stop_signals import Stopped, StopRequest, StopSignals
from reelworks.training.loop.training_loop import EndReason, Trainer
from reelworks.training.observers import observer
from reelworks.training.observers.early_stop import EarlyStop
from reelworks.training.observers.observer import Training
from reelworks.training.observers.profile import StepProfiler
from reelworks.training.observers.run_logger import RunLogger
from reelworks.training.observers.validation import digest_of_loss
from reelworks.training.recipe import annex_tables, recipe_file
from reelworks.training.recipe.recipe import Recipe
from reelworks.training.step import progress

_NO_OVERRIDES = arguments.that("empty: the recipe was read already", lambda v: not v, "give the recipe's file")


@dataclass(frozen=True)
class TrainResult:
    """State of a run when a training ended.

    Attributes:
        run: The run folder.
        reason: "finished", or what ended it before, so that the same command goes on: "signal", or "storage" if that gave no clip.
        step: Optimizer steps done.
        epoch: From 0.
        checkpoint: The newest one that is whole; None if there is none.
        metrics: Those of that checkpoint.
        exports: Files of weights that its latest export wrote.
    """

    run: Path
    reason: Literal["finished", "signal", "storage"]
    step: int
    epoch: int
    checkpoint: Path | None
    metrics: dict[str, float]
    exports: list[Path]


@of_recipe()
@checked(
    recipe=arguments.any_of(arguments.a(Recipe), arguments.PATH),
    overrides=arguments.each(arguments.TEXT),
    resume=arguments.TEXT,
    restart_data=arguments.FLAG,
)
def train(
    recipe: Recipe | str | Path, *, overrides: Sequence[str] = (), resume: str = "auto", restart_data: bool = False
) -> int:
    """Train a recipe; the same call again resumes.

    Under torchrun each process calls it and joins the others, in a process group that it makes and destroys. Lines
    about its progress go to the logger `reelworks`, and are printed where that has no handler.

    Args:
        recipe: The recipe, or its TOML file.
        overrides: Texts `a.b=value` that change what the file says; for a file only.
        resume: "auto" (the newest good checkpoint), "never", or a step.
        restart_data: Begin the data again, and keep weights and step count.

    Returns:
        0 when finished, `EXIT_REQUEUE` when ended before, on a signal or because a storage gave no clip; of steps that were
        trained, all is saved then.

    Raises:
        UserError: Anything a person can mend.
    """
    if not isinstance(recipe, Recipe):
        recipe = recipe_file.load(Path(recipe), overrides)
    else:
        arguments.checked_value("overrides", overrides, _NO_OVERRIDES)
    return run(recipe, TrainRequest(resume=resume, restart_data=restart_data, overrides=tuple(overrides)))


@of_recipe()
def run(
    recipe: Recipe,
    request: TrainRequest,
    on_scan: Callable[[ScanProgress], None] | None = None,
    on_encode: Callable[[Progress], None] = lambda progress: None,
    on_end: Callable[[TrainResult], None] | None = None,
) -> int:
    """Train a recipe in this process, and return the exit code, as `train` does; under torchrun, every rank calls it.

    `on_end` gets the result on the first rank.
    """
    annex_tables.require(recipe.annex)
    stages.require_unrestarted(recipe, request)
    with StopSignals() as signals:
        try:
            return _run(recipe, request, signals, on_scan, on_encode, on_end)
        except Stopped:
            logger.info("stopped while the ranks found each other; the same command goes on")
            return EXIT_REQUEUE


def _run(
    recipe: Recipe,
    request: TrainRequest,
    signals: StopSignals,
    on_scan: Callable[[ScanProgress], None] | None,
    on_encode: Callable[[Progress], None],
    on_end: Callable[[TrainResult], None] | None,
) -> int:
    joined = mesh.join(
        offload=recipe.parallel.offload, parallel=recipe.parallel, facts=lambda: rendezvous.facts(recipe)
    )
    with joined as world, ExitStack() as stack:
        stack.enter_context(log.to_terminal(speaks=world.is_main))
        exported: list[Path] = []
        end: StageEnd | None = None
        first, profiled = sys.maxsize, request.profiled_steps
        try:
            start.require_possible(recipe, world)
            start.tell_device(world)
            threads = resume.set_threads(recipe)
            folder_lock = stack.enter_context(open_run.lock_folder(recipe, request.resume, world))
            world.wait()  # for the first rank, which may have fetched a checkpoint from the mirror
            ended = ""  # name of the stage before
            while end is None or end.reason == "stage":
                try:
                    stage = resume.pick(RunFolder(Path(recipe.output)), recipe, request.resume, world, ended)
                    end = _train_stage(stage, request, folder_lock, world, signals, on_scan, on_encode, threads=threads)
                except resume.OtherStageError:
                    continue
                world.wait()  # for the first rank's copy to the mirror, which lasts as long as it does
                exported = end.exported or exported
                first = min(first, 1 + (stage.step or 0))
                if end.reason == "stage":
                    ended = stage.start.name
                    request = replace(request, resume="auto", load=None, weights_only=False)
                    signals.end_stage()
        except Stopped:
            after = "before the first step of this start" if end is None else f"after step {end.position.global_step}"
            said = f"stopped {after}; the same command goes on"
            logger.info(said)
            world.take_along(EXIT_REQUEUE, said)  # the others may wait for this rank
            if end is None:
                return EXIT_REQUEUE
            end = replace(end, reason="signal")
        if profiled is not None and (profiled[1] < first or profiled[0] > end.position.global_step):
            logger.warning("--profile %d:%d has traced nothing: this start has trained no such step", *profiled)
    if world.is_main and on_end is not None:
        folder = RunFolder(Path(recipe.output))
        *_, newest = None, *CheckpointFolder(folder.checkpoints_folder).list()
        path, metrics = (None, {}) if newest is None else (newest.path, listing.finite(newest.metrics))
        why = "finished" if end.reason == "stage" else end.reason
        on_end(TrainResult(folder.path, why, end.position.global_step, end.position.epoch, path, metrics, exported))
    return EXIT_REQUEUE if end.reason in ("signal", "storage") else 0


@dataclass(frozen=True)
class StageEnd:
    """The end of a stage, or of all training.

    Attributes:
        position: Where it ended.
        exported: Files of weights that it wrote.
    """

    position: DataPosition
    reason: EndReason
    exported: list[Path]


def _train_stage(
    stage: Stage,
    request: TrainRequest,
    folder_lock: FolderLock,
    world: World,
    signals: StopSignals,
    on_scan: Callable[[ScanProgress], None] | None,
    on_encode: Callable[[Progress], None],
    *,
    threads: int,
) -> StageEnd:
    """Train a stage from its start or a checkpoint in it; nothing of it stays in memory."""
    gc.collect()
    with ExitStack() as stack:
        start.require_possible(stage.recipe, world)
        start.scan(stage, world, on_scan)
        started = start.plan(stage, request, folder_lock, world)
        this_run, data, recipe = started.run, started.data, started.data.recipe
        others = observer.prepare(data)
        observer.require(recipe)
        sources = start.require_weights(recipe, resumed=stage.step is not None)
        stored, encoders = stack.enter_context(start.stored_latents(started, world, on_encode))

        stack.enter_context(attention.prefer(recipe.model.attention))
        model = start.build_model(started, sources, encoders)
        stack.enter_context(model.attention.replaced())
        position, resumed_from = resume.restore(started, model)
        start.rehearse(started, model, position)
        checkpointing.try_disk(this_run, recipe, model.state, position)
        events_file, first = this_run.folder.events_file, data.stage.step
        measure = "" if recipe.validation.patience is None else digest_of_loss(recipe, data, data.held_out())
        early = EarlyStop.resume(recipe.validation, events_file, position.global_step, world, first, measure)
        done = early.is_over or progress.is_done(recipe.train, position)
        recipe_name = resume.prepare_folder(started, position, threads=threads, done=done)

        run_log = stack.enter_context(
            RunLogger(this_run.folder, data, world, position, recipe_name=recipe_name, debug=request.debug)
        )
        run_log.start(started.spec, threads=threads, resumed_from=resumed_from, sources=sources)
        if replaced := [*model.attention.fault_lines(), *model.attention.quicker_lines()]:
            run_log.event("attention", step=position.global_step, replaced=replaced)
        mirror = stack.enter_context(checkpointing.mirroring(this_run, recipe, run_log, resumed_from))
        checkpoints = CheckpointManager(this_run, data, model, run_log, mirror, resumed_from)
        encoder = stored_batches.choose(model.encoder, world, stored)
        source = StepSource(
            data,
            rank=world.data_rank,
            world=world.data_size,
            max_steps=recipe.train.max_steps,
            max_epochs=recipe.train.max_epochs,
            skips=recipe.train.skips,
            sequence_rank=None if world.sequence is None else world.sequence.rank,
        )
        stops = StopRequest(signals, world)
        training = Training(this_run.folder, world, data, model, encoder, source, run_log, checkpoints, stops)
        trainer = Trainer(training, checkpoints, run_log, early)
        profiler = StepProfiler(request.profiled_steps, training)
        trainer.observe(first=profiler, last=[make(training) for make in others])
        world.wait()  # a signal stops all ranks in the same way
        signals.begin_stage()
        try:
            end, reason = trainer.train(position, stage, stops)
        except Exception:
            if world.is_main:  # it still copies the last checkpoint to the mirror, and ends trackers
                world.stay()
            raise
        if reason != "stage":
            signals.restore()  # nothing is left to save: what follows may wait for an upload
    return StageEnd(end, reason, checkpoints.exported)
