"""Open a run folder: lock it, and create it or read the values that are fixed for the life of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from reelworks.core.log import logger
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.checkpoint.mirror import fetch
from reelworks.data.checkpoint.mirror.remote import RemoteFilesystem
from reelworks.data.distributed.mesh import World
from reelworks.data.loader.dataset import Dataset
from reelworks.data.run import lock
from reelworks.data.run.folder import RunFolder
from reelworks.data.schedule.plan import PlanSpec
from reelworks.training.loop.request import TrainRequest
from reelworks.training.loop.stages import Stage
from reelworks.training.memory.recomputation import Cards
from reelworks.training.plan import plan_forecast
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.recipe.recipe import Recipe


@dataclass(frozen=True)
class FolderLock:
    """The main rank's lock on a run folder, for all ranks.

    Attributes:
        check: Raises `LockLost` if another process has taken over the folder; does nothing on other ranks.
        remote: File system of the mirror, on the main rank; None if the recipe has no mirror.
    """

    check: Callable[[], None]
    remote: RemoteFilesystem | None


@dataclass(frozen=True)
class OpenRun:
    """The run folder that this start trains in.

    Attributes:
        id: Identifier of the run, the same at all starts.
        store: Checkpoints of the run; publishes none if another process has taken over the folder.
        micro_batches_per_step: G, over all ranks; fixed with the first checkpoint, whatever the number of ranks.
        same_bucket_run: L, consecutive micro-batches of one bucket; fixed likewise.
    """

    folder: RunFolder
    id: str
    store: CheckpointFolder
    micro_batches_per_step: int
    same_bucket_run: int
    folder_lock: FolderLock
    world: World


@dataclass(frozen=True)
class StartedStage:
    """A stage that a start trains, with its run folder open and its data planned."""

    stage: Stage
    request: TrainRequest
    run: OpenRun
    data: RecipeData
    spec: PlanSpec
    cards: Cards


@contextmanager
def lock_folder(recipe: Recipe, resume: str, world: World) -> Iterator[FolderLock]:
    """Lock a recipe's run folder on the main rank, and fetch the files that it lacks from its mirror.

    Call this before the scan, as the mirror may hold the catalog, too.
    """
    if not world.is_main:
        yield FolderLock(lambda: None, None)
        return
    folder, config = RunFolder(Path(recipe.output)), recipe.checkpoints.mirror
    with lock.hold(folder.lock_file) as handle:
        remote = None if config is None else RemoteFilesystem.open(config)
        if remote is not None:
            fetch.bring_back(remote, folder, resume)
        yield FolderLock(handle.check, remote)


def open_run(recipe: Recipe, folder_lock: FolderLock, world: World) -> OpenRun:
    """Create the run folder, or read the values that are fixed in it. Collective."""
    folder = RunFolder(Path(recipe.output))
    store = CheckpointFolder(folder.checkpoints_folder, may_publish=folder_lock.check)
    if world.is_main:
        _fix_step_shape(recipe, folder, store, world)
    world.barrier()
    info = folder.info()
    return OpenRun(
        folder, info["id"], store, info["micro_batches_per_step"], info["same_bucket_run"], folder_lock, world
    )


def _fix_step_shape(recipe: Recipe, folder: RunFolder, store: CheckpointFolder, world: World) -> None:
    """Fix G and L once the run has a checkpoint, so that another number of ranks trains on the same batches.

    If the recipe's keys change, G and L are computed again.
    """
    train = recipe.train
    asked = [train.gradient_accumulation_steps, train.micro_batches_per_step, train.same_bucket_run]
    former = folder.info() if folder.exists else {}
    has_checkpoints = bool(store.steps())
    if has_checkpoints and former.get("asked") == asked:
        return
    micro_batches, same_bucket_run = plan_forecast.step_shape(recipe, world.data_size)
    frozen = {"micro_batches_per_step": micro_batches, "same_bucket_run": same_bucket_run, "asked": asked}
    folder.refreeze(frozen) if former else folder.create(frozen)
    if has_checkpoints and former.get("micro_batches_per_step") is not None:
        logger.info(f"micro-batches per step: {former['micro_batches_per_step']} then, {micro_batches} now")


def plan_spec(data: Dataset, run: OpenRun) -> PlanSpec:
    """Return the settings of the run's plans."""
    if run.world.data_size > run.micro_batches_per_step:
        raise plan_forecast.too_many_ranks(run.micro_batches_per_step, run.world.data_size)
    return data.plan_spec(run.micro_batches_per_step, run.same_bucket_run)
