"""One training, from a recipe to an exit code."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import reelworks
from reelworks.catalog.scan import ScanProgress
from reelworks.checkpoint import mirror_fetch
from reelworks.checkpoint.background import Background
from reelworks.checkpoint.mirror import Mirror
from reelworks.checkpoint.mirror_place import Place
from reelworks.checkpoint.store import CheckpointStore
from reelworks.core import files
from reelworks.core.errors import UserError
from reelworks.parallel import mesh
from reelworks.parallel.mesh import World
from reelworks.precision.boundary import Boundary
from reelworks.prepare import data as preparing
from reelworks.prepare import forecast, reasons, summary
from reelworks.prepare.data import RecipeData
from reelworks.prepare.position import Position
from reelworks.recipe import load as recipes
from reelworks.recipe.recipe import Recipe
from reelworks.run import events, lock
from reelworks.run.folder import RunFolder
from reelworks.schedule.plan import PlanSpec
from reelworks.train import beginning, build, rehearsal
from reelworks.train.beginning import RunOptions
from reelworks.train.feed import Feed
from reelworks.train.journal import Journal
from reelworks.train.keep import Keeper
from reelworks.train.loop import Loop
from reelworks.train.preview import Previewer
from reelworks.train.recorder import Recorder
from reelworks.train.saves import Saver
from reelworks.train.state import TrainState
from reelworks.train.step import Stepper
from reelworks.train.validate import Validator

# EX_TEMPFAIL: saved on a signal; a scheduler may requeue the same command.
EXIT_REQUEUE = 75


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
            field="--weights-only",
            remedy="add --load RUN|CHECKPOINT",
        )
    with mesh.join() as world, ExitStack() as stack:
        threads = _set_threads(recipe, world)
        folder = RunFolder(Path(recipe.output))
        held = place = None
        if world.is_main:
            held = stack.enter_context(lock.hold(folder.lock_file, say=print))
            if recipe.checkpoints.mirror is not None:
                place = Place.open(recipe.checkpoints.mirror)
                # Before the scan, since the catalog may come from there too.
                mirror_fetch.bring_back(place, folder, options.resume, print)
            preparing.scan(recipe, on_scan)
        world.wait()
        data = replace(RecipeData.open(recipe), run=folder)
        info, said = _open_folder(recipe, folder, world)
        spec = _spec(data, info, world)
        said += data.chosen.lines() if data.chosen else []
        check = held.check if held is not None else _not_held
        return _train(
            data.recipe, options, world, folder, data, spec, info["id"], threads, said, check, place
        )


def _train(
    recipe: Recipe,
    options: RunOptions,
    world: World,
    folder: RunFolder,
    data: RecipeData,
    spec: PlanSpec,
    run_id: str,
    threads: int,
    said: list[str],
    check: Callable[[], None],
    place: Place | None,
) -> int:
    denoiser = build.denoiser(recipe, world.device)
    encoder = build.encoder(recipe, world.device)
    rehearsal.audit_shapes(denoiser, encoder, data.table, world)
    mesh.shard(
        denoiser.module, denoiser.sharding().blocks, denoiser.contract, world, recipe.parallel.strategy
    )
    state = TrainState.start(denoiser.module, recipe.train)
    boundary = Boundary(denoiser)
    keeper = Keeper(CheckpointStore(folder.checkpoints_folder, check), folder, recipe, run_id, world)
    step = keeper.find(options.resume)
    position, found = beginning.find(data, spec, folder, keeper, step, state, options)
    _agree(world, position)
    said = found + said
    bucket = rehearsal.largest(data.table, set(position.plan.bucket.tolist()) or {0})
    rehearsal.rehearse(boundary, encoder, state, bucket)
    said += keeper.look_ahead(state, position)
    kept = ""
    if world.is_main:
        kept = folder.keep_recipe(recipes.dump(data.recipe))
        said += _threads_changed(folder, threads)
        said += _write_context(folder, data, position, world, threads)
    with Recorder(
        folder, main=world.is_main, total_steps=recipe.train.max_steps, first_step=position.global_step
    ) as tell:
        tell.event(
            "start",
            step=position.global_step,
            world_size=world.size,
            micro_batches_per_step=spec.micro_batches_per_step,
            slot_width=spec.slot_width,
            threads=threads,
            device=str(world.device),
            recipe=kept,
            resumed_from=step,
        )
        for line in said:
            tell.say(line)
        feed = Feed(data, world.rank, world.size)
        stepper = Stepper(
            boundary, encoder, state, data.table, world, recipe.train, recipe.objective, recipe.seed
        )
        validator = Validator(
            boundary,
            encoder,
            state,
            world,
            feed,
            data.held_out(),
            recipe.validation.times,
            recipe.objective,
            recipe.seed,
        )
        previewer = Previewer(
            recipe.preview, boundary, encoder, recipe.objective, state, world, folder, recipe.seed
        )
        journal = Journal(folder, data, world, tell, recipe.train.log_every, options.debug)
        background = Background(int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        mirror = None
        if place is not None:
            assert recipe.checkpoints.mirror is not None
            mirror = Mirror(place, folder, run_id, recipe.checkpoints.mirror, tell)
            if step is not None:  # whose copy a kill may have cut off
                mirror.offer(step)
        saver = Saver(recipe.checkpoints, folder, keeper, data, state, tell, background, check, mirror)
        loop = Loop(recipe, folder, data, feed, stepper, validator, previewer, keeper, saver, tell, journal)
        try:
            ended = loop.go(position, resumed=step is not None)
        finally:
            if mirror is not None and (failure := mirror.close()):
                tell.say(f"warning: {failure}")
    return EXIT_REQUEUE if ended == "signal" else 0


def _not_held() -> None:
    """The main rank holds the run's lock for all."""


def _agree(world: World, position: Position) -> None:
    """Refuse to train where ranks planned differently, as with a catalog that one machine has an older copy of.

    Raises:
        UserError: On all ranks alike.
    """
    plans = world.gather(position.plan.digest())
    others = [str(rank) for rank, plan in enumerate(plans) if plan != plans[0]]
    if others:
        raise UserError(
            f"rank {', '.join(others)} planned another epoch than rank 0",
            field="catalog",
            remedy="let all machines read the same catalog and the same files that the recipe names, with the same "
            "version of reelworks",
        )


def _set_threads(recipe: Recipe, world: World) -> int:
    """Fix the number of threads: sums on a CPU depend on it, so a bit-equal resume needs the same."""
    on_host = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    threads = recipe.train.threads or max((os.cpu_count() or 1) // on_host, 1)
    torch.set_num_threads(threads)
    return threads


def _open_folder(recipe: Recipe, folder: RunFolder, world: World) -> tuple[dict[str, Any], list[str]]:
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


def _spec(data: RecipeData, info: dict[str, Any], world: World) -> PlanSpec:
    if world.size > info["micro_batches_per_step"]:
        raise forecast.too_many_ranks(info["micro_batches_per_step"], world.size)
    return data.spec(info["micro_batches_per_step"], info["slot_width"])


def _write_context(
    folder: RunFolder, data: RecipeData, position: Position, world: World, threads: int
) -> list[str]:
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


def _threads_changed(folder: RunFolder, threads: int) -> list[str]:
    """Warn that sums round otherwise from here on than they would have without the interruption."""
    starts = list(events.read(folder.events_file, "start"))
    if not starts or starts[-1]["threads"] == threads:
        return []
    return [f"threads: {starts[-1]['threads']} then, {threads} now; losses will differ in their last bits"]
