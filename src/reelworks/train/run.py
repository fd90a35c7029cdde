"""One training, from a recipe to an exit code."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from reelworks.catalog.scan import ScanProgress
from reelworks.checkpoint import mirror_fetch
from reelworks.checkpoint.background import Background
from reelworks.checkpoint.mirror import Mirror
from reelworks.checkpoint.mirror_place import Place
from reelworks.checkpoint.store import CheckpointStore
from reelworks.core.errors import UserError
from reelworks.encode.live import LiveEncoder
from reelworks.generate.pipeline import GenerateOptions
from reelworks.models.api import DenoiserInputs
from reelworks.models.lora import reading
from reelworks.models.lora.base import Base
from reelworks.parallel import mesh
from reelworks.parallel.mesh import World
from reelworks.precision.boundary import Boundary
from reelworks.prepare import sources
from reelworks.prepare.data import RecipeData
from reelworks.prepare.position import Position
from reelworks.recipe import load as recipes
from reelworks.recipe.recipe import Recipe
from reelworks.run import lock, records
from reelworks.run.folder import RunFolder
from reelworks.schedule.plan import PlanSpec
from reelworks.train import beginning, build, context, optimizers, preview, rate, rehearsal
from reelworks.train.beginning import RunOptions
from reelworks.train.feed import Feed, is_done, last_step
from reelworks.train.journal import Journal
from reelworks.train.keep import Keeper
from reelworks.train.loop import Loop
from reelworks.train.preview import Previewer
from reelworks.train.record_keeper import RecordKeeper
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
    with mesh.join(offload=recipe.parallel.offload) as world, ExitStack() as stack:
        optimizers.require(recipe.train.optimizer, recipe.parallel.strategy, world.size)
        threads = context.set_threads(recipe, world)
        folder = RunFolder(Path(recipe.output))
        check, place = _not_held, None
        if world.is_main:
            check = stack.enter_context(lock.hold(folder.lock_file, say=print)).check
            if recipe.checkpoints.mirror is not None:
                place = Place.open(recipe.checkpoints.mirror)
                # Before the scan, since the catalog may come from there too.
                mirror_fetch.bring_back(place, folder, options.resume, print)
            sources.scan(recipe, on_scan)
        world.wait()
        data = replace(RecipeData.open(recipe), run=folder)
        info, said = context.open_folder(recipe, folder, world)
        spec = context.spec_of(data, info, world)
        if recipe.train.lacks_end:
            raise rate.no_end(recipe.train, data.plan(spec, 0).steps)
        said += data.chosen.lines() if data.chosen else []
        return _train(_Start(options, world, folder, data, spec, info["id"], threads, said, check, place))


@dataclass(frozen=True)
class _Start:
    """What is known before there is a model.

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
    place: Place | None


@dataclass(frozen=True)
class _Model:
    """What is trained, sharded and with its optimizer, what it is fed through, and what its LoRA lies on."""

    boundary: Boundary[DenoiserInputs]
    encoder: LiveEncoder
    state: TrainState
    base: Base | None


def _train(start: _Start) -> int:
    recipe, world, folder, data = start.data.recipe, start.world, start.folder, start.data
    previews = preview.options(data)
    store = CheckpointStore(folder.checkpoints_folder, start.check)
    keeper = Keeper(store, folder, recipe, start.run_id, world)
    step = keeper.find(start.options.resume)
    model = _build(start, resumed=step is not None)
    keeper = replace(keeper, base=model.base)
    position, found = beginning.find(data, start.spec, folder, keeper, step, model.state, start.options)
    _agree(world, position)
    bucket = rehearsal.largest(data.table, set(position.plan.bucket.tolist()) or {0})
    rehearsal.rehearse(model.boundary.denoiser, model.encoder, model.state, bucket)
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
        kept = folder.keep_recipe(recipes.dump(recipe))
        said += context.threads_changed(folder, start.threads)
        said += context.write(folder, data, position, world, start.threads)
    # The plan of what an epoch has left tells nothing of the length of others.
    total = recipe.train.max_steps if position.segment else last_step(recipe.train, position)
    with Recorder(folder, main=world.is_main, total_steps=total, first_step=position.global_step) as tell:
        tell.event(
            "start",
            step=position.global_step,
            world_size=world.size,
            micro_batches_per_step=start.spec.micro_batches_per_step,
            slot_width=start.spec.slot_width,
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
    rehearsal.audit_shapes(denoiser, encoder, start.data.table, world)
    rehearsal.require_encoders(encoder)
    mesh.shard(
        denoiser.module, denoiser.sharding().blocks, denoiser.contract, world, recipe.parallel.strategy
    )
    return _Model(Boundary(denoiser), encoder, TrainState.start(denoiser, recipe.train), denoiser.base)


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
    feed = Feed(data, world.rank, world.size)
    background = Background(int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    return Loop(
        recipe,
        folder,
        data,
        feed,
        Stepper(boundary, encoder, state, data.table, world, recipe),
        Validator(
            boundary, encoder, state, world, feed, data.held_out(), recipe.validation.times, objective, seed
        ),
        Previewer(recipe, boundary, encoder, state, world, folder, previews),
        keeper,
        Saver(recipe.checkpoints, folder, keeper, data, state, tell, background, start.check, mirror),
        tell,
        Journal(folder, data, world, tell, book, recipe.train.log_every, start.options.debug),
    )


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
