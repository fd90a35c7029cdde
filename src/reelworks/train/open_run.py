"""Open a run folder: hold it against other starts, and read or freeze what stays the same over its life."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from reelworks.analysis import plan_report
from reelworks.checkpoint.mirror import fetch
from reelworks.checkpoint.mirror.remote import RemoteFilesystem
from reelworks.checkpoint.store import CheckpointStore
from reelworks.core.log import logger
from reelworks.data.dataset import Dataset
from reelworks.distributed.mesh import World
from reelworks.recipe.recipe import Recipe
from reelworks.run import lock
from reelworks.run.folder import RunFolder
from reelworks.schedule.plan import PlanSpec


@dataclass(frozen=True)
class FolderLock:
    """The main rank's lock on a run folder, for all ranks.

    Attributes:
        check: Raises `LockLost` where another process has taken the folder over; does nothing on the other ranks.
        remote: On the main rank, where checkpoints are mirrored to if the recipe says so.
    """

    check: Callable[[], None]
    remote: RemoteFilesystem | None


@dataclass(frozen=True)
class StepShape:
    """Micro-batches of a step, whatever the number of ranks: frozen with the first checkpoint.

    Attributes:
        micro_batches_per_step: G, of all ranks.
        same_bucket_run: L, consecutive micro-batches of one bucket.
        former: On the main rank, what G was until the recipe asked for another shape now; else None.
    """

    micro_batches_per_step: int
    same_bucket_run: int
    former: int | None = None

    def log_change(self) -> None:
        """Tell where it is another one than before."""
        if self.former is not None:
            logger.info(f"micro-batches per step: {self.former} then, {self.micro_batches_per_step} now")


@dataclass(frozen=True)
class OpenRun:
    """The run folder that this start trains in.

    Attributes:
        id: The same for all starts of the run.
        store: Its checkpoints; publishes none any more once another process holds the folder.
    """

    folder: RunFolder
    id: str
    store: CheckpointStore
    step_shape: StepShape
    folder_lock: FolderLock
    world: World


@contextmanager
def lock_folder(recipe: Recipe, resume: str, world: World) -> Iterator[FolderLock]:
    """FolderLock a recipe's run folder on the main rank, and bring back from its mirror what it lacks.

    Before the scan, since the catalog may come from there too.

    Raises:
        UserError: Another process holds the folder, or the mirror does not answer or is another run's.
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
    """Make the run folder, or read what is frozen in it. Collective."""
    folder = RunFolder(Path(recipe.output))
    store = CheckpointStore(folder.checkpoints_folder, folder_lock.check)
    former = _freeze_step_shape(recipe, folder, store, world) if world.is_main else None
    world.barrier()
    info = folder.info()
    shape = StepShape(info["micro_batches_per_step"], info["same_bucket_run"], former)
    return OpenRun(folder, info["id"], store, shape, folder_lock, world)


def _freeze_step_shape(recipe: Recipe, folder: RunFolder, store: CheckpointStore, world: World) -> int | None:
    """Freeze the shape of a step with the first checkpoint, so that other numbers of ranks go on with the same batches.

    Asking for another shape in the recipe thaws it.

    Returns:
        Micro-batches per step until now, where a run with checkpoints goes on with another shape.
    """
    train = recipe.train
    asked = [train.gradient_accumulation_steps, train.micro_batches_per_step, train.same_bucket_run]
    former = folder.info() if folder.exists else {}
    has_checkpoints = bool(store.steps())
    if has_checkpoints and former.get("asked") == asked:
        return None
    micro_batches, width = plan_report.step_shape(recipe, world.size)
    frozen = {"micro_batches_per_step": micro_batches, "same_bucket_run": width, "asked": asked}
    folder.refreeze(frozen) if former else folder.create(frozen)
    return former.get("micro_batches_per_step") if has_checkpoints else None


def plan_spec(data: Dataset, run: OpenRun) -> PlanSpec:
    """Return the spec of the run's plans.

    Raises:
        UserError: Some ranks would never work.
    """
    shape, ranks = run.step_shape, run.world.size
    if ranks > shape.micro_batches_per_step:
        raise plan_report.too_many_ranks(shape.micro_batches_per_step, ranks)
    return data.plan_spec(shape.micro_batches_per_step, shape.same_bucket_run)
