"""Start or resume a run: load the weights, find the position in the data, and update the run folder."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from reelworks.core import files, launcher, log, machine, units, version
from reelworks.core.errors import UserError
from reelworks.core.log import logger
from reelworks.data.checkpoint import load, verify
from reelworks.data.checkpoint.folder import CheckpointFolder, CheckpointInfo
from reelworks.data.checkpoint.mirror import fetch
from reelworks.data.distributed import collectives
from reelworks.data.distributed.mesh import World
from reelworks.data.loader import resume
from reelworks.data.loader.position import DataPosition, next_epoch
from reelworks.data.run import events, history, records
from reelworks.data.run.folder import RunFolder
from reelworks.data.schedule.cursor import Aliases, Cursor
from reelworks.data.schedule.plan import PlanSpec
from reelworks.models import hub
from reelworks.models.adapters.files import warn_of_base
from reelworks.training.assembly import init_from
from reelworks.training.assembly.build import TrainedModel
from reelworks.training.loop import checkpointing, stages
from reelworks.training.loop.open_run import StartedStage
from reelworks.training.loop.stages import Stage, as_written
from reelworks.training.plan import plan_report, rejections
from reelworks.training.recipe import diff, recipe_file
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.recipe.recipe import Recipe
from reelworks.training.recipe.stages import ENDS
from reelworks.training.step import progress
from reelworks.training.step.spikes import SpikeDetector


def set_threads(recipe: Recipe) -> int:
    """Set the number of CPU threads and return it; a bit-equal resume needs the same, as sums depend on it."""
    threads = recipe.train.threads or machine.threads(launcher.number("LOCAL_WORLD_SIZE"))
    torch.set_num_threads(threads)
    return threads


def restore(started: StartedStage, model: TrainedModel) -> tuple[DataPosition, int | None]:
    """Load the stage's checkpoint, and return the position in the data that belongs to it, and its step. Collective.

    Without one the run starts fresh, from the weights that `request.load` names, if any. A checkpoint that proves bad
    while it is read is skipped for an older one, unless its step was asked for.

    Raises:
        OtherStageError: The older one may be of another stage.
    """
    with log.stage("loading the weights that training begins with, and planning"):
        world, data = started.run.world, started.data
        if started.stage.step is None:
            position, resumed_from = _start_fresh(started, model), None
        else:
            _require_alike(world, [data.digest, started.spec.digest()])  # by which ranks call each other from here on
            position, resumed_from = _resume(started, model)
        data.stage = position.stage  # of a run that began with --load, its average is older
        if data.recipe.train.falls_over_epochs:
            steps, until = data.stage.epoch_steps, progress.falls_until(data.recipe.train, data.stage)
            logger.info(
                "the learning rate falls until step %d, as if each epoch had the %d steps of the first", until, steps
            )
        _require_alike(world, position.plan.digest())
        if not world.is_main:  # which reports what the plan leaves out
            data.forget_planning()
    return position, resumed_from


def _require_alike(world: World, planned: Any) -> None:
    """Refuse on all ranks what differs between them: a machine with an older copy of the catalog plans something else."""
    every = world.gather(planned)
    if others := [str(rank) for rank, one in enumerate(every) if one != every[0]]:
        raise UserError(
            f"rank {', '.join(others)} planned another epoch than rank 0",
            code="ranks-planned-differently",
            field="catalog",
            remedy="let all machines have the same version, and read the same catalog and files of the recipe",
        )


_OF_TENSORS = ("lora.", "model.", "autoencoder.", "text_encoder.")  # what keys begin with that decide which there are
# What keys begin with that give losses another size, and that decide which clips are held out.
_OF_THE_LOSS = ("objective.", "autoencoder.", "sound.", "train.loss_reduction")
_OF_THE_SPLIT = ("seed", "validation.split", "validation.group")


class OtherStageError(Exception):
    """The checkpoint that training goes on from proved bad, and an older one may be of another stage."""


def _resume(started: StartedStage, model: TrainedModel) -> tuple[DataPosition, int]:
    stage, request, run, data, spec = started.stage, started.request, started.run, started.data, started.spec
    step, (cursor, excluded, aliases) = _load(started, model)
    if stage.config is not None and step != stage.step:
        raise OtherStageError
    if stage.begins:
        return _begin_stage(started, model, cursor, aliases), step
    of_recipe = diff.since_step(run.folder, step, data.recipe) if run.world.is_main else []
    changes = diff.lines(as_written(of_recipe, stage.config, stage.start))
    if request.load is not None:
        changes.append("--load has no effect: the run resumes from its own checkpoint")
    keys: Any = run.world.broadcast([change.key for change in of_recipe])
    changes.extend(effects(keys, data.recipe))
    if any(key.startswith(_OF_THE_LOSS) for key in keys):
        model.state.spikes = SpikeDetector()  # losses and gradients have another size now
    restart_data = request.restart_data
    if restart_data:
        # The main rank decides, as other ranks may read an older version of the events file.
        reason: Any = run.world.broadcast(_reason_to_keep_data(started, cursor) if run.world.is_main else None)
        if reason is not None:
            changes.append(f"--restart-data has no effect: {reason}")
            restart_data = False
    if restart_data:
        position, data_changes = resume.start_again(
            data, spec, run.folder, cursor, aliases, cursor.stage, collectives.on_first
        )
        logger.info("resumed the weights of step %d; the data restart at epoch 0", step)
    else:
        position, data_changes = resume.resume(data, spec, run.folder, cursor, excluded, aliases, collectives.on_first)
        logger.info("resumed from step %d, epoch %d, plan step %d", step, position.epoch, position.plan_step)
    if data_changes and data.recipe.train.falls_over_epochs:
        changes.extend(_moved_end(data, spec, position))
    for line in (*data_changes, *changes):
        logger.info(line)
    return position, step


def effects(keys: Sequence[str], recipe: Recipe) -> Iterator[str]:
    """Yield what else changes for a run that goes on with a recipe of which these keys have changed."""
    if (recipe.validation.split or "validation.split" in keys) and any(key.startswith(_OF_THE_SPLIT) for key in keys):
        yield "other clips are held out now, some of which may have been trained: the losses of validation cannot be compared"
    if recipe.lora is None and "model.weights" in keys:
        yield "model.weights has no effect on the trained weights: the run resumes from its own checkpoint"


def _whole_epoch(data: RecipeData, spec: PlanSpec, position: DataPosition) -> DataPosition:
    """Return a position with the plan of its whole epoch, of which a later segment is only the rest."""
    if position.segment == 0:
        return position
    return replace(position, plan=replace(data, run=None).plan(spec, position.epoch))


def _moved_end(data: RecipeData, spec: PlanSpec, position: DataPosition) -> Iterator[str]:
    """Tell where the epochs end, now that their clips changed, if that is not where the rate is at its end."""
    train, epoch = data.recipe.train, _whole_epoch(data, spec, position).plan.num_steps
    assert train.max_epochs is not None
    later = (train.max_epochs - position.epoch - 1) * epoch
    ends = position.global_step + position.plan.num_steps - position.plan_step + later
    if ends != progress.falls_until(train, position.stage):
        name, own = position.stage.name, ends - position.stage.step
        where = f"steps = {own} in [[stage]] {name}" if name else f"train.max_steps = {ends}"
        yield f"the epochs end at about step {ends} now; to let the learning rate fall until then, set {where}"


def _begin_stage(started: StartedStage, model: TrainedModel, cursor: Cursor, aliases: Aliases) -> DataPosition:
    """Return the first position of a stage, and begin anew what its entry in the recipe says."""
    stage, run, data = started.stage, started.run, started.data
    assert stage.config is not None
    position, changes = resume.start_again(
        data, started.spec, run.folder, cursor, aliases, stage.start, collectives.on_first
    )
    model.state.spikes = SpikeDetector()
    if stage.config.optimizer == "reset":
        before = recipe_file.of_run(run.folder, cursor.global_step)
        if before.train.ema_decay is None:
            model.state.take_average()
        model.state.optimizer.begin()
    if stage.config.ema == "reset":
        model.state.begin_average()
    logger.info("stage %s begins after step %d, for %s", stage.start.name, stage.start.step, stage.config.end_text)
    of_recipe = diff.since_step(run.folder, cursor.global_step, data.recipe) if run.world.is_main else []
    # Its end is told above: these count from the start of the run, and nobody wrote them.
    told = (change for change in of_recipe if change.key.removeprefix("train.") not in ENDS.values())
    for line in (*changes, *diff.lines(told)):
        logger.info(line)
    return position


def _load(started: StartedStage, model: TrainedModel) -> tuple[int, checkpointing.Restored]:
    """Load the stage's checkpoint, or the newest one that is not bad if none was asked for; returns its step."""
    stage, run, recipe, step = started.stage, started.run, started.stage.recipe, started.stage.step
    assert step is not None
    adapter = None if recipe.lora is None else recipe.lora.training_adapter

    def attempt(info: CheckpointInfo) -> checkpointing.Restored:
        require_settings(run.folder, info.step, stage)
        optimizer = not stage.resets_optimizer
        try:
            return checkpointing.restore(info.path, model.state, model.base, adapter, optimizer=optimizer)
        except UserError as error:
            differs = error.code == "checkpoint-state-differs"
            lines = diff.lines(diff.since_step(run.folder, info.step, recipe)) if differs else []
            if changes := [line for line in lines if line.startswith(_OF_TENSORS)]:
                remedy = f"set back what its tensors depend on ({'; '.join(changes)}), or train in a run of its own"
                error.reword(field=error.field, remedy=remedy)
            raise

    if started.request.resume == "auto":
        remote = run.folder_lock.remote  # on the first rank
        repair = partial(fetch.replace, remote, run.store) if remote is not None else lambda step: False
        found = load.load_newest(run.store, attempt, quarantine=True, repair=repair)
        assert found is not None  # `pick` found one
        return found[0].step, found[1]
    info = run.store.info(step)
    with verify.bad_told(info.path):
        return step, attempt(info)


def _start_fresh(started: StartedStage, model: TrainedModel) -> DataPosition:
    data, request = started.data, started.request
    position, empty = next_epoch(data, started.spec, None)
    logger.info("starting fresh")
    log_empty(empty)
    recipe, average_steps = data.recipe, 0
    if launcher.may_add_ranks() and recipe.train.micro_batches_per_step is None:
        most = units.plural(started.spec.micro_batches_per_step, "micro-batch")
        logger.warning(
            f"a step of this run has {most} from now on, and training ends where machines join with more ranks than have one: "
            "set train.micro_batches_per_step to a multiple of the most GPUs that there may be"
        )
    if request.load is not None:
        average_steps = init_from.load_run(
            request.load, model, started.run.world, recipe, weights_only=request.weights_only
        )
    if recipe.lora is not None and recipe.lora.weights is not None and model.base is not None:
        warn_of_base(recipe.lora.weights, model.base)
    return replace(position, stage=replace(data.stage, average_step=-average_steps)).with_epochs_begun()


def log_moved_sources(folder: RunFolder, sources: Mapping[str, str]) -> None:
    """Warn of weights on the hub that are at another commit than at the run's last start, with a way to keep that."""
    starts = events.timeline(folder.events_file, "start")
    former = starts[-1].get("sources", {}) if starts else {}
    for field, now in sources.items():
        then = former.get(field, now)
        if then != now and hub.strip_revision(then) == hub.strip_revision(now):
            logger.warning(f"{field} is {now} now, and was {then} at the run's last start; to keep that, write it so")


def log_empty(epochs: list[int]) -> None:
    """Log the epochs that are skipped because no clip is drawn in them."""
    for epoch in epochs:
        logger.info("epoch %d: no clip was drawn", epoch)


def _reason_to_keep_data(started: StartedStage, cursor: Cursor) -> str | None:
    """Return why --restart-data has no effect, or None if it has.

    A scheduler repeats the same command after every preemption, so restarted data are finished before they are
    restarted again, unless the command names a checkpoint.
    """
    request, last = started.request, started.data.recipe.train.max_steps
    if last is not None and cursor.global_step >= last:
        return f"train.max_steps = {last} is reached"
    is_repeated = request.resume == "auto" and (cursor.data_restarts or request.load is not None)
    if not is_repeated or cursor.data_restarts in history.finished_generations(started.run.folder):
        return None
    what = "an earlier start restarted the data" if cursor.data_restarts else "the run began the data after --load"
    return (
        f"{what}, and they are not finished, so training continues with them; "
        f"--resume {cursor.global_step} --restart-data restarts them again"
    )


def prepare_folder(started: StartedStage, position: DataPosition, *, threads: int, done: bool) -> str:
    """Update the run folder for a start, on the main rank: set later checkpoints aside, write recipe and plan.

    `done` tells whether nothing is left to train. Other ranks do nothing, and get an empty name.

    Call this before logging the start event, which voids the events of later steps: after a kill in between, there
    would be a checkpoint without events of its steps. Returns the name of the recipe's file in `recipes/`.
    """
    stage, run, data = started.stage, started.run, started.data
    if not run.world.is_main:
        return ""
    with files.writing("output", run.folder.path):
        if stage.step is not None:
            # A later checkpoint is of an abandoned branch, and would pass for the newest, or for a save of its step.
            for later in [step for step in run.store.steps() if step > position.global_step]:
                aside = run.store.set_aside(later, f"abandoned: the run went back to step {position.global_step}")
                logger.info("checkpoint of step %d is set aside as %s", later, aside.name)
        if started.request.resume.isdecimal():  # so that what a mirror has of later steps is abandoned, too
            run.store.log("went_back", position.global_step)
        # A fresh start has former records too, if a start was killed before its first save.
        records.reopen(run.folder, position.global_step, None if done else position.key)
        whole = recipe_file.dump(stage.whole) if stage.config is not None else None
        recipe_name = run.folder.keep_recipe(recipe_file.dump(data.recipe), whole)
        stages.log_edited(stage, run.folder)
        starts = list(events.read(run.folder.events_file, "start"))
        if starts and (former := starts[-1]["threads"]) != threads:
            logger.warning(f"threads: {former} then, {threads} now; losses will differ in their last bits")
        _write_plan(started, position)
        files.write_json(
            run.folder.environment_file,
            {
                "reelworks": version.__version__,
                "torch": str(torch.__version__),
                "python": platform.python_version(),
                "machine": f"{platform.system()} {platform.machine()}, {machine.cores()} cores",
                "device": str(run.world.device),
                "world_size": run.world.size,
                "threads": threads,
            },
        )
        return recipe_name


def _write_plan(started: StartedStage, position: DataPosition) -> None:
    run, data, spec, epoch = started.run, started.data, position.spec, position.epoch
    ranks, given = run.world.data_size, started.stage.recipe
    plan = _whole_epoch(data, spec, position).plan
    summary = plan_report.summarise(data, spec, plan, world=ranks, epoch=epoch, given=given)
    for file in (run.folder.summary_file(position.global_step), run.folder.summary_file()):
        files.write_json(file, summary)
    rejections.write(run.folder.plan_folder / "left-out.parquet", data, epoch, field="output")
    left_out = ", ".join(f"{group.clips} {reason}" for reason, group in summary.left_out.items())
    shown = units.plural(summary.planned, "showing")
    planned = f"{shown} planned in {units.plural(summary.steps_per_epoch, 'step')} per epoch"
    clips = units.plural(summary.catalog.clips, "clip")
    logger.info(f"{clips}: {planned}" + (f"; {left_out}" if left_out else ""))
    everything = f"all clips that are left out are listed in {run.folder.plan_folder / 'left-out.parquet'}"
    for line in rejections.lines(summary.left_out, summary.reasons, everything):
        logger.info(line)
    for warning in plan_report.warnings(summary):
        logger.warning(warning)


def pick(folder: RunFolder, recipe: Recipe, resume: str, world: World, ended: str = "") -> Stage:
    """Return the stage to train, with the step to resume from by the option `resume`, or without for a fresh start.

    `ended` is as in `stages.find`. Collective.
    """
    step = world.broadcast(_choose_step(folder, resume) if world.is_main else None)
    stage = stages.find(recipe, step, world, ended)  # type: ignore[arg-type]
    if stage.step is not None:
        require_settings(folder, stage.step, stage)  # before the model is built
    return stage


def require_settings(folder: RunFolder, step: int, stage: Stage) -> None:
    """Check that a checkpoint of the run can be continued with the settings of a stage."""
    remedy = f"start another run with --output DIR --load {folder.path} --weights-only"
    init_from.require_same_settings(folder, step, stage.recipe, None if stage.resets_optimizer else remedy)


def _choose_step(folder: RunFolder, resume: str) -> int | None:
    store = CheckpointFolder(folder.checkpoints_folder)
    store.sweep()  # remove unfinished saves of killed processes
    files.sweep_below(folder.path)  # and all else that they did not finish
    if resume == "never":
        if store.steps():
            raise UserError(
                "the run folder already has checkpoints",
                code="run-has-checkpoints",
                field="--resume",
                value=resume,
                remedy="leave --resume out to resume from them, or choose another --output",
            )
        return None
    if resume != "auto":
        if not resume.isdecimal():
            raise UserError(
                "not a step", code="not-a-step", field="--resume", value=resume, remedy="write auto, never, or a number"
            )
        return verify.named(store, int(resume), full=False).step
    # Loading verifies the content, and tells and sets aside those that are skipped.
    found = verify.newest_valid(store, full=False)
    if found is None and (saved := events.timeline(folder.events_file, "checkpoint")):
        raise UserError(
            f"the run saved step {saved[-1]['step']}, and there is no checkpoint in its folder",
            code="no-good-checkpoint",
            field="checkpoints",
            value=str(store.root),
            remedy="mount the disk that they are on, or bring them back; to begin anew, add --resume never",
        )
    return None if found is None else found[0].step
