"""Open a run folder: lock it, and create it or read the values that are fixed for the life of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.checkpoint.mirror import fetch
from reelworks.data.checkpoint.mirror.remote import RemoteFilesystem
from reelworks.data.distributed.mesh import World
from reelworks.data.run import events, lock
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
    """

    folder: RunFolder
    id: str
    store: CheckpointFolder
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
    with lock.hold(folder.lock_file) as handle, events.kept(folder.events_file):
        remote = None if config is None else RemoteFilesystem.open(config)
        if remote is not None:
            fetch.bring_back(remote, folder, resume, recipe.checkpoints.keep_best)
        folder.require_free()
        yield FolderLock(handle.check, remote)


def open_run(recipe: Recipe, folder_lock: FolderLock, world: World) -> OpenRun:
    """Create the run folder, or open it. Collective."""
    folder = RunFolder(Path(recipe.output))
    if world.is_main:
        folder.create(ranks_at_start(folder, world))
    world.barrier()
    store = CheckpointFolder(folder.checkpoints_folder, may_write=folder_lock.check)
    return OpenRun(folder, folder.info().id, store, folder_lock, world)


def ranks_at_start(folder: RunFolder, world: World) -> int:
    """Return the data ranks that the run began with, which its first checkpoint fixes.

    With the recipe they alone decide what a step is, so that another number of ranks trains on the same batches.
    """
    begun = folder.exists and CheckpointFolder(folder.checkpoints_folder).steps()
    return folder.info().ranks if begun else world.data_size


def plan_spec(data: RecipeData, run: OpenRun) -> PlanSpec:
    """Return the settings of the run's plans."""
    return plan_forecast.plan_spec(data, run.world.data_size, run.folder.info().ranks)
