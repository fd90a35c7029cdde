"""Steps of a start that `trainer.run` takes one after the other, on all ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from reelworks.core import device_memory, log, machine
from reelworks.core.log import logger
from reelworks.data.catalog.scan.scan import ScanProgress
from reelworks.data.distributed import layout, mesh
from reelworks.data.distributed.mesh import World
from reelworks.data.loader.position import DataPosition
from reelworks.data.run.folder import RunFolder
from reelworks.models import components, recompute
from reelworks.models.attention import attention
from reelworks.models.precision.boundary import DtypeBoundary
from reelworks.models.sequence import sequence_limits
from reelworks.models.sequence.sequence_parallel import SequenceParallel
from reelworks.training.assembly import build, preview_model
from reelworks.training.assembly.build import TrainedModel
from reelworks.training.encoding import reachable
from reelworks.training.encoding.encode_worker import Progress
from reelworks.training.encoding.encoders import FrozenEncoders
from reelworks.training.encoding.stored_batches import StoredLatents
from reelworks.training.loop import open_run, rendezvous, resume
from reelworks.training.loop.open_run import FolderLock, StartedStage
from reelworks.training.loop.request import TrainRequest
from reelworks.training.loop.stages import Stage
from reelworks.training.memory import dry_run, memory, recomputation
from reelworks.training.memory.recomputation import Cards
from reelworks.training.observers import trackers
from reelworks.training.precompute import encoding
from reelworks.training.preflight import kernels, stage_data
from reelworks.training.recipe import dataset, device_limits, recipe_file, release_notes
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.recipe.recipe import Recipe
from reelworks.training.step import compiled_encoder, optimizer_names, out_of_memory
from reelworks.training.step.compiled_blocks import CompiledBlocks
from reelworks.training.step.state import TrainState


def require_possible(recipe: Recipe, world: World) -> None:
    """Raise if trackers are not installed, ranks and optimizer do not fit, or nodes do not share the run's folder."""
    trackers.require_installed(recipe.logging)
    optimizer_names.require(recipe.train.optimizer, layout.fixed(recipe.parallel, world.size, world.local_size))
    device_limits.require(recipe, world.device)
    rendezvous.require_shared_folder(Path(recipe.output), world)


def tell_device(world: World) -> None:
    """Say why the CPU trains where there is a GPU, or on a Mac."""
    if world.is_main and (reason := machine.why_cpu()):
        logger.warning(f"the CPU trains, not the GPU: {reason}")


def scan(stage: Stage, world: World, on_scan: Callable[[ScanProgress], None] | None) -> None:
    """Scan the footage of a stage on the main rank, while the others wait.

    The stages behind it are required to be trainable too, unless the start before had the same ones. They come first:
    where two stages cut the same files in other ways, the catalog is to be that of this one.
    """
    run = RunFolder(Path(stage.recipe.output))
    former = run.recipe_file.read_text(encoding="utf-8", errors="replace") if run.recipe_file.is_file() else None
    if world.is_main and not stage.is_last and former != recipe_file.dump(stage.whole):
        names = [one.name for one in stage.whole.stage]
        later = range(names.index(stage.start.name) + 1, len(names))
        begun = open_run.ranks_at_start(run, world)
        stage_data.require(
            stage.whole, later, lambda one: dataset.scan_recipe(one, on_scan), world.size, world.local_size, begun
        )
    if world.is_main:
        dataset.scan_recipe(stage.recipe, on_scan)
    world.wait()


def plan(stage: Stage, request: TrainRequest, folder_lock: FolderLock, world: World) -> StartedStage:
    """Open the run, and its catalog with the buckets that were proposed if the recipe names none."""
    recipe = stage.recipe
    with log.stage("planning"):
        cards = _cards(recipe, world)
        data = recomputation.settle(RecipeData.open(recipe), cards)
        data = replace(data, run=RunFolder(Path(recipe.output)), stage=stage.start)
        recipe = data.recipe
        sequence_limits.require_buckets(recipe.model, data.table)
        run = open_run.open_run(recipe, folder_lock, world)
        spec = open_run.plan_spec(data, run)
    return StartedStage(stage, request, run, data, spec, cards)


def _cards(recipe: Recipe, world: World) -> Cards:
    """Return the GPUs of all ranks, with the memory of the smallest. Collective."""
    if recipe.model.gradient_checkpointing != "auto":
        return Cards(None)
    own: list[Any] = world.gather(world.device_bytes)
    limit = recomputation.limit(recipe, None if device_memory.total_bytes(world.device) is None else min(own))
    return Cards(math.inf if limit is None else limit, world.size, world.local_size)


def require_weights(recipe: Recipe, *, resumed: bool) -> dict[str, str]:
    """Raise if weights are missing that a start or a resume reads, warn of distilled ones, and return the sources."""
    sources = build.require_sources(recipe, resumed=resumed)
    preview_model.require_layers(recipe)
    if (warning := release_notes.distilled_warning(recipe)) is not None:
        logger.warning(warning)
    return sources


@contextmanager
def stored_latents(
    started: StartedStage, world: World, on_encode: Callable[[Progress], None]
) -> Iterator[tuple[StoredLatents | None, FrozenEncoders | None]]:
    """Encode what the recipe's store lacks, and yield the store, with encoders that are loaded when they are needed.

    Both are None without a store.
    """
    data = started.data
    if not data.recipe.encode.store:
        yield None, None
        return
    encoders = build.lazy_encoder(data.recipe, world.device)
    stored = encoding.before_training(data, encoders, world, started.spec, on_encode)
    try:
        yield stored, encoders
    finally:
        stored.close()


def build_model(started: StartedStage, sources: Mapping[str, str], encoders: FrozenEncoders | None) -> TrainedModel:
    """Build a recipe's model, check its dtypes and kernels for all buckets, and shard it. Collective.

    `encoders` take the place of the recipe's, such as those that are loaded at their first use. Warns if a resumed run's
    published weights have moved since.
    """
    run, data, resumed = started.run, started.data, started.stage.step is not None
    recipe, world = data.recipe, run.world
    if resumed and world.is_main:
        resume.log_moved_sources(run.folder, sources)
    network = build.denoiser(recipe, world.home, resumed=resumed)
    live = encoders is None
    encoders = build.encoder(recipe, world.device) if encoders is None else encoders
    dry_run.audit_shapes(network, encoders, data.table, world)
    for fault in dry_run.faults_of_encoders(encoders):
        raise fault
    attention.use(network, recipe.model.attention, world.device)
    replaced = kernels.choose(network, encoders, data, world)
    shards, reason = build.choose_layout(
        recipe, network, ranks=world.size, local_ranks=world.local_size, device_bytes=world.device_bytes
    )
    if world.size > 1 and world.is_main:
        logger.info(f"{shards} ({shards.strategy}): {reason}")
    sequence = SequenceParallel.of_denoiser(network, components.family_config(recipe.model).network, world)
    mesh.shard(network.module, network.sharding().units, network.contract, world, shards)
    compiled = CompiledBlocks.of_recipe(network, data)
    of_encoder = compiled_encoder.of_recipe(encoders.autoencoder, recipe, world.device) if live else []
    state = TrainState.start(network, recipe.train)
    levels = recomputation.raised(data, started.cards)
    if world.is_main:
        for line in recomputation.lines_of_start(data, levels):
            logger.info(line)
    return TrainedModel(
        DtypeBoundary(network),
        encoders,
        state,
        network.base,
        compiled,
        sequence,
        shards,
        replaced,
        levels,
        (compiled.first_shapes, *of_encoder),
    )


def rehearse(started: StartedStage, model: TrainedModel, position: DataPosition) -> None:
    """Run the largest planned micro-batch once: a lack of memory shows before the first step, or not at all."""
    run, data = started.run, started.data
    # The rest of an epoch may have fewer clips than the next one.
    is_alike = position.segment == 0 and not reachable.varies(data)
    table = memory.table_of_plans(data, position.plan if is_alike else None)
    planned = sorted(set(position.plan.micro_bucket.tolist())) or [0]  # the plan of the rest of an epoch may be empty
    levels = model.recomputation or (None,) * len(data.table.buckets)
    # The largest of each may need the most memory.
    largest = memory.largest((levels[i], table.buckets[i]) for i in planned)
    if started.request.debug:
        out_of_memory.record_history(run.world.device)
    snapshot = run.folder.snapshot_file(run.world.rank)
    with log.stage("running the largest bucket once"):
        for recomputed, bucket in largest.items():
            clips = bucket.batch_size * data.recipe.clips_per_place
            model.sequence.use(bucket.sequence_degree)
            level = recompute.of_eager_pass(recomputed or False, compiles=data.recipe.train.compile)
            with recompute.by(level):
                dry_run.rehearse(model.boundary.denoiser, model.encoder, model.state, bucket, snapshot, clips=clips)
    for line in data.chosen.lines if data.chosen else []:
        logger.info(line)
