"""Begin a run or resume it: find where to train on, and bring the run folder in line with that."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, replace
from pathlib import Path

import torch

import reelworks
from reelworks.analysis import plan_report, rejections
from reelworks.checkpoint import verify
from reelworks.checkpoint.store import CheckpointStore
from reelworks.core import files
from reelworks.core.errors import UserError
from reelworks.core.log import logger
from reelworks.data import resume
from reelworks.data.position import DataPosition, next_epoch
from reelworks.distributed.mesh import World
from reelworks.models.lora.base_model import Base
from reelworks.models.lora.files import of_another_base
from reelworks.recipe import diff, recipe_file
from reelworks.recipe.dataset import RecipeData
from reelworks.recipe.recipe import Recipe
from reelworks.run import events, history, records
from reelworks.run.folder import RunFolder
from reelworks.schedule.cursor import Cursor
from reelworks.schedule.plan import PlanSpec
from reelworks.train import checkpointing, init_from
from reelworks.train.open_run import OpenRun
from reelworks.train.progress import is_done
from reelworks.train.state import TrainState


@dataclass(frozen=True)
class RunOptions:
    """Options of the command line beside a recipe.

    Attributes:
        resume: "auto", "never", or a step.
        load: Another run, or a checkpoint, to begin with; without effect once this run has its own.
        weights_only: Take only the weights of `load`.
        restart_data: Begin the data again at epoch 0, and keep weights, optimizer and step count.
        debug: Log the clips of every step, on every rank.
    """

    resume: str = "auto"
    load: Path | None = None
    weights_only: bool = False
    restart_data: bool = False
    debug: bool = False


def set_threads(recipe: Recipe) -> int:
    """Fix the number of threads: sums on a CPU depend on it, so a bit-equal resume needs the same."""
    on_host = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    threads = recipe.train.threads or max((os.cpu_count() or 1) // on_host, 1)
    torch.set_num_threads(threads)
    return threads


def restore(
    run: OpenRun,
    data: RecipeData,
    spec: PlanSpec,
    options: RunOptions,
    *,
    step: int | None,
    state: TrainState,
    base: Base | None,
) -> DataPosition:
    """Load the weights to train on, and return the position in the data that belongs to them. Collective.

    Args:
        run: The run folder.
        data: What is trained on.
        spec: What shapes the plans.
        options: May name other weights to begin with, or ask for the data to begin again.
        step: The checkpoint to resume from; None for a fresh start.
        state: Weights, average and optimizer, changed in place.
        base: What the LoRA lies on, if one is trained.

    Raises:
        UserError: What is loaded is of another model or base, or a record that the resume needs is lost.
    """
    if step is None:
        return _begin(run, data, spec, options, state=state, base=base)
    saved = checkpointing.restore(run.store.path(step), state, base)
    changes = diff.of_recipes(run.folder, step, data.recipe) if run.world.is_main else []
    if options.load is not None:
        changes.append("--load is without effect: the run goes on from its own checkpoint")
    again = options.restart_data
    if again:
        # The main rank decides: what others see of the events may be older.
        why_not = run.world.broadcast(
            _why_not_again(data, run.folder, saved.cursor, options) if run.world.is_main else None
        )
        if why_not is not None:
            changes.append(f"--restart-data is without effect: {why_not}")
            again = False
    if again:
        found = resume.start_again(data, spec, run.folder, saved.cursor, saved.aliases)
        logger.info("weights of step %d; the data begin again at epoch 0", step)
    else:
        found = resume.resume(data, spec, run.folder, saved.cursor, saved.excluded, saved.aliases)
        position = found.position
        logger.info("resumed from step %d, epoch %d, row %d", step, position.epoch, position.row)
    for line in (*found.changes, *changes):
        logger.info(line)
    return found.position


def _begin(
    run: OpenRun,
    data: RecipeData,
    spec: PlanSpec,
    options: RunOptions,
    *,
    state: TrainState,
    base: Base | None,
) -> DataPosition:
    begun, empty = next_epoch(data, spec, None)
    logger.info("starting fresh")
    log_empty(empty)
    recipe = data.recipe
    if options.load is not None:
        init_from.take_over(options.load, state, run.world, recipe, base, weights_only=options.weights_only)
    file = recipe.lora.weights if recipe.lora is not None else None
    warning = of_another_base(file, base) if file is not None and base is not None else None
    if warning is not None:
        logger.warning(warning)
    return begun


def log_empty(epochs: list[int]) -> None:
    """Tell the epochs that are passed over."""
    for epoch in epochs:
        logger.info("epoch %d: no clip was drawn", epoch)


def _why_not_again(data: RecipeData, folder: RunFolder, cursor: Cursor, options: RunOptions) -> str | None:
    """Why the data do not begin again although asked to; None where they do.

    A scheduler gives the same command again after every preemption. So data that were begun from scratch are
    finished first, unless a checkpoint is named.
    """
    last = data.recipe.train.max_steps
    if last is not None and cursor.global_step >= last:
        return f"train.max_steps = {last} is reached"
    named = options.resume != "auto"
    if named or not cursor.generation or cursor.generation in history.finished_generations(folder):
        return None
    return (
        "the data began again at an earlier start and are not finished, so training goes on with them; "
        f"--resume {cursor.global_step} --restart-data begins them again"
    )


def require_same_plan(world: World, position: DataPosition) -> None:
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


def prepare_folder(run: OpenRun, data: RecipeData, position: DataPosition, *, threads: int, resumed: bool) -> str:
    """Bring the run folder in line with a start, on the main rank: what is behind it goes, what it plans is written.

    To be called before the event of the start, which voids the events of later steps: a kill in between would leave a checkpoint whose
    steps no event tells.

    Returns:
        The file of the recipe, below `recipes/`.
    """
    if resumed:
        _abandon_after(run, position.global_step)
        done = is_done(data.recipe.train, position)
        records.reopen(run.folder, position.global_step, None if done else position.key)
    kept = run.folder.keep_recipe(recipe_file.dump(data.recipe))
    _warn_of_threads(run.folder, threads)
    _write_plan(run, data, position)
    files.write_json(
        run.folder.environment_file,
        {
            "reelworks": reelworks.__version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
            "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
            "device": str(run.world.device),
            "world_size": run.world.size,
            "threads": threads,
        },
    )
    return kept


def _abandon_after(run: OpenRun, step: int) -> None:
    """Set later checkpoints aside: the run goes on from an earlier step, and they are of another branch.

    Left in place, one of them would count as the save of its step, or as the newest.
    """
    for later in [s for s in run.store.steps() if s > step]:
        aside = run.store.quarantine(later, f"abandoned: the run went back to step {step}")
        logger.info("checkpoint of step %d is set aside as %s", later, aside.name)


def _warn_of_threads(folder: RunFolder, threads: int) -> None:
    """Warn that sums round otherwise from here on than they would have without the interruption."""
    starts = list(events.read(folder.events_file, "start"))
    if starts and starts[-1]["threads"] != threads:
        then = starts[-1]["threads"]
        logger.warning(f"threads: {then} then, {threads} now; losses will differ in their last bits")


def _write_plan(run: OpenRun, data: RecipeData, position: DataPosition) -> None:
    """Write the plan's summary and what it leaves out, and log the plan in a line."""
    spec, epoch = position.spec, position.epoch
    # The rest of an epoch says little about it; the whole one is planned for the summary alone.
    plan = position.plan if position.segment == 0 else replace(data, run=None).plan(spec, epoch)
    summary = plan_report.summarise(data, spec, plan, world=run.world.size, epoch=epoch)
    files.write_json(run.folder.plan_folder / "summary.json", summary)
    rejections.write(run.folder.plan_folder / "left-out.parquet", data, epoch)
    named = ", ".join(f"{one['clips']} {reason}" for reason, one in summary["left_out"].items())
    planned = f"{summary['planned']} planned in {summary['steps_per_epoch']} steps per epoch"
    logger.info(f"{summary['catalog']['clips']} clips: {planned}" + (f"; {named}" if named else ""))
    for warning in plan_report.warnings(summary):
        logger.warning(warning)


def pick(run: OpenRun, recipe: Recipe, resume: str) -> int | None:
    """Pick the step to resume from; None for a fresh start. The main rank decides. Collective.

    Args:
        run: Holds the checkpoints.
        recipe: To train on with.
        resume: "auto" (the newest good one), "never", or a step.

    Raises:
        UserError: All checkpoints are bad, a named one is bad or missing, or "never" in a used folder; or the step
            was trained with another optimizer, or as a LoRA of another rank or alpha.
    """
    found = _step_of(run.store, run.folder, resume) if run.world.is_main else None
    step: int | None = run.world.broadcast(found)  # type: ignore[assignment]
    if step is not None:  # before a model is loaded
        init_from.require_same_lora(run.folder, step, recipe)
        elsewhere = f"begin another run with --output DIR --load {run.folder.path} --weights-only"
        init_from.require_optimizer(run.folder, step, recipe, elsewhere)
    return step


def _step_of(store: CheckpointStore, run: RunFolder, resume: str) -> int | None:
    """Step to resume from; None for a fresh start. What dead processes left in the store is removed first."""
    store.sweep()
    if resume == "never":
        if store.steps():
            raise UserError(
                "the run folder already has checkpoints",
                code="run-has-checkpoints",
                field="--resume",
                value=resume,
                remedy="leave --resume out to go on from them, or choose another --output",
            )
        return None
    if resume != "auto":
        return verify.named(store, _step(resume), full=True).step
    # After a kill files may be whole in size and not in content; reading them once tells.
    found = verify.newest_valid(store, full=not _left_in_order(run))
    if found is None:
        return None
    info, skipped = found
    for step, reason in skipped:
        logger.warning("checkpoint of step %d is passed over: %s", step, reason)
    return info.step


def _left_in_order(run: RunFolder) -> bool:
    """Whether the last start ended by itself, with all that it wrote on disk."""
    last = ""
    for event in events.read(run.events_file, "start", "stop"):
        last = event["kind"]
    return last == "stop"


def _step(text: str) -> int:
    if not text.isdecimal():
        raise UserError(
            "not a step",
            code="not-a-step",
            field="--resume",
            value=text,
            remedy="say auto, never, or a number",
        )
    return int(text)
