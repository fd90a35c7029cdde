"""What a start finds in the run folder, and writes there before the first step."""

from __future__ import annotations

import os
import platform
from dataclasses import replace
from typing import Any

import torch

import reelworks
from reelworks.checkpoint.store import CheckpointStore
from reelworks.core import files
from reelworks.parallel.mesh import World
from reelworks.prepare import forecast, reasons, summary
from reelworks.prepare.data import RecipeData
from reelworks.prepare.position import Position
from reelworks.recipe.recipe import Recipe
from reelworks.run import events
from reelworks.run.folder import RunFolder
from reelworks.schedule.plan import PlanSpec


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
    asked = [train.gradient_accumulation_steps, train.micro_batches_per_step, train.slot_width]
    if world.is_main:
        former = folder.info() if folder.exists else {}
        begun = bool(CheckpointStore(folder.checkpoints_folder).steps())
        if not begun or former.get("asked") != asked:
            steps, width = forecast.step_shape(recipe, world.size)
            frozen = {"micro_batches_per_step": steps, "slot_width": width, "asked": asked}
            folder.refreeze(frozen) if former else folder.create(frozen)
            if begun:
                then = former.get("micro_batches_per_step")
                said.append(f"micro-batches per step: {then} then, {steps} now")
    world.barrier()
    return folder.info(), said


def spec_of(data: RecipeData, info: dict[str, Any], world: World) -> PlanSpec:
    """What shapes the run's plans, with the shape of a step that is frozen in its folder.

    Raises:
        UserError: Some ranks would never work.
    """
    if world.size > info["micro_batches_per_step"]:
        raise forecast.too_many_ranks(info["micro_batches_per_step"], world.size)
    return data.spec(info["micro_batches_per_step"], info["slot_width"])


def write(folder: RunFolder, data: RecipeData, position: Position, world: World, threads: int) -> list[str]:
    """Write the plan's summary, what it leaves out, and the environment of this start; tell the plan."""
    spec, epoch = position.spec, position.epoch
    # The rest of an epoch says little about it; the whole one is planned for the summary alone.
    plan = position.plan if position.segment == 0 else replace(data, run=None).plan(spec, epoch)
    told = summary.summarise(data, spec, plan, world=world.size, epoch=epoch)
    files.write_json(folder.plan_folder / "summary.json", told)
    reasons.write(folder.plan_folder / "left-out.parquet", data, epoch)
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
        *summary.warnings(told),
    ]


def threads_changed(folder: RunFolder, threads: int) -> list[str]:
    """Warn that sums round otherwise from here on than they would have without the interruption."""
    starts = list(events.read(folder.events_file, "start"))
    if not starts or starts[-1]["threads"] == threads:
        return []
    return [f"threads: {starts[-1]['threads']} then, {threads} now; losses will differ in their last bits"]
