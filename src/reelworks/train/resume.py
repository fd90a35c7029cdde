"""Begin a run or resume it: read what the command line asks for and what the run folder holds, and open that folder."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import reelworks
from reelworks.analysis import plan_report, rejections
from reelworks.checkpoint.store import CheckpointStore
from reelworks.core import files
from reelworks.data import resume
from reelworks.data.position import DataPosition, next_epoch
from reelworks.distributed.mesh import World
from reelworks.recipe import diff
from reelworks.recipe.dataset import RecipeData
from reelworks.recipe.recipe import Recipe
from reelworks.run import events, history
from reelworks.run.folder import RunFolder
from reelworks.schedule.cursor import Cursor
from reelworks.schedule.plan import PlanSpec
from reelworks.train import init_from
from reelworks.train.checkpointing import Keeper
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


def find(
    data: RecipeData,
    spec: PlanSpec,
    folder: RunFolder,
    keeper: Keeper,
    step: int | None,
    state: TrainState,
    options: RunOptions,
) -> tuple[DataPosition, list[str]]:
    """Find where to train on, with the weights for it in place; also what to tell of it."""
    if step is None:
        begun, empty = next_epoch(data, spec, None)
        said = ["starting fresh", *(f"epoch {epoch}: no clip was drawn" for epoch in empty)]
        if options.load is not None:
            said.append(
                init_from.take_over(
                    options.load,
                    state,
                    keeper.world,
                    data.recipe,
                    keeper.base,
                    weights_only=options.weights_only,
                )
            )
        return begun, said
    cursor, excluded, aliases = keeper.restore(step, state)
    changes = diff.of_recipes(folder, step, data.recipe) if keeper.world.is_main else []
    if options.load is not None:
        changes.append("--load is without effect: the run goes on from its own checkpoint")
    if options.restart_data:
        # The main rank decides: what others see of the events may be older.
        why_not = keeper.world.broadcast(
            _why_not_again(data, folder, cursor, options) if keeper.world.is_main else None
        )
        if why_not is None:
            begun, found = resume.start_again(data, spec, folder, cursor, aliases)
            return begun, [f"weights of step {step}; the data begin again at epoch 0", *found, *changes]
        changes.append(f"--restart-data is without effect: {why_not}")
    position, found = resume.resume(data, spec, folder, cursor, excluded, aliases)
    return position, [
        f"resumed from step {step}, epoch {position.epoch}, row {position.row}",
        *found,
        *changes,
    ]


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


def set_threads(recipe: Recipe, world: World) -> int:
    """Fix the number of threads: sums on a CPU depend on it, so a bit-equal resume needs the same."""
    on_host = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    threads = recipe.train.threads or max((os.cpu_count() or 1) // on_host, 1)
    torch.set_num_threads(threads)
    return threads


def open_folder(recipe: Recipe, folder: RunFolder, world: World) -> tuple[dict[str, Any], list[str]]:
    """Make the run folder, or read what is frozen in it; also what changed of that, as lines for people.

    The shape of a step is frozen with the first checkpoint, so that another number of ranks goes on with
    the same global batches. Asking for another shape in the recipe thaws it.
    """
    said: list[str] = []
    train = recipe.train
    asked = [train.gradient_accumulation_steps, train.micro_batches_per_step, train.same_bucket_run]
    if world.is_main:
        former = folder.info() if folder.exists else {}
        begun = bool(CheckpointStore(folder.checkpoints_folder).steps())
        if not begun or former.get("asked") != asked:
            steps, width = plan_report.step_shape(recipe, world.size)
            frozen = {"micro_batches_per_step": steps, "same_bucket_run": width, "asked": asked}
            folder.refreeze(frozen) if former else folder.create(frozen)
            if begun:
                then = former.get("micro_batches_per_step")
                said.append(f"micro-batches per step: {then} then, {steps} now")
    world.barrier()
    return folder.info(), said


def spec_of(data: RecipeData, info: dict[str, Any], world: World) -> PlanSpec:
    """Return the spec of the run's plans, with the shape of a step that is frozen in its folder.

    Raises:
        UserError: Some ranks would never work.
    """
    if world.size > info["micro_batches_per_step"]:
        raise plan_report.too_many_ranks(info["micro_batches_per_step"], world.size)
    return data.plan_spec(info["micro_batches_per_step"], info["same_bucket_run"])


def write(
    folder: RunFolder, data: RecipeData, position: DataPosition, world: World, threads: int
) -> list[str]:
    """Write the plan's summary, what it leaves out, and the environment of this start; tell the plan."""
    spec, epoch = position.spec, position.epoch
    # The rest of an epoch says little about it; the whole one is planned for the summary alone.
    plan = position.plan if position.segment == 0 else replace(data, run=None).plan(spec, epoch)
    told = plan_report.summarise(data, spec, plan, world=world.size, epoch=epoch)
    files.write_json(folder.plan_folder / "summary.json", told)
    rejections.write(folder.plan_folder / "left-out.parquet", data, epoch)
    files.write_json(
        folder.environment_file,
        {
            "reelworks": reelworks.__version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
            "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
            "device": str(world.device),
            "world_size": world.size,
            "threads": threads,
        },
    )
    named = ", ".join(f"{one['clips']} {reason}" for reason, one in told["left_out"].items())
    planned = f"{told['planned']} planned in {told['steps_per_epoch']} steps per epoch"
    return [
        f"{told['catalog']['clips']} clips: {planned}" + (f"; {named}" if named else ""),
        *plan_report.warnings(told),
    ]


def threads_changed(folder: RunFolder, threads: int) -> list[str]:
    """Warn that sums round otherwise from here on than they would have without the interruption."""
    starts = list(events.read(folder.events_file, "start"))
    if not starts or starts[-1]["threads"] == threads:
        return []
    return [f"threads: {starts[-1]['threads']} then, {threads} now; losses will differ in their last bits"]
