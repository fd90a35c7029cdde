"""Saving: written beside, checked, and published by one rename.

    space check → fresh temporary folder → every rank writes its shards through torch.distributed.checkpoint
    and digests them → manifest, last → fsync → rename onto free ground → fsync of the parent → history

A checkpoint exists exactly if its rename happened. Whatever fails or dies before that costs this save and
nothing else; a failure on one rank is raised, equal, on all.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reelworks.checkpoint import mount, names, publish, ranks, space
from reelworks.checkpoint.publish import Order
from reelworks.checkpoint.shards import Shards, Written
from reelworks.checkpoint.store import CheckpointInfo, CheckpointStore
from reelworks.core import storage
from reelworks.core.errors import UserError


class SaveFailed(UserError):  # noqa: N818
    """No checkpoint was made; those on disk are as they were."""


class DiskFull(SaveFailed):
    """The disk or the quota has too little room for one more checkpoint."""


@dataclass(frozen=True)
class Saved:
    """Result of a save, equal on all ranks.

    Attributes:
        info: The checkpoint on disk.
        seconds: Wall time of the whole save.
        fresh: False if the step had a valid checkpoint already, which was left as it is.
    """

    info: CheckpointInfo
    seconds: float
    fresh: bool

    @property
    def bytes(self) -> int:
        """Size of the checkpoint's files."""
        return self.info.manifest.total_bytes


def save(
    store: CheckpointStore,
    step: int,
    state: dict[str, Any],
    *,
    extra: Mapping[str, bytes] | None = None,
    metrics: Mapping[str, float] | None = None,
    run_id: str = "",
) -> Saved:
    """Write and publish a checkpoint. Collective over the default process group, if there is one.

    Args:
        store: Where to; the same folder for all ranks.
        step: Optimizer steps done.
        state: Nested dicts of tensors, DTensors and plain values, e.g. `{"model": ..., "optimizer": ...}`.
        extra: Small files by name, such as `cursor.json`; those of rank 0 count.
        metrics: Metrics known by now.
        run_id: The run's id.

    Raises:
        DiskFull: Too little room, before or while writing.
        SaveFailed: Anything else that kept any rank from its part.
    """
    saving = begin(store, step, state, extra=extra, metrics=metrics, run_id=run_id)
    saving.write()
    return saving.finish()


def begin(
    store: CheckpointStore,
    step: int,
    state: dict[str, Any],
    *,
    extra: Mapping[str, bytes] | None = None,
    metrics: Mapping[str, float] | None = None,
    run_id: str = "",
    stage: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> Saving:
    """Begin a save that `Saving.write` and `Saving.finish` complete; else as `save`, and collective too.

    Args:
        stage: Makes a copy of the state, once it is known to fit. Without it the state must not change
            before `Saving.write` has returned.
    """
    order = Order(store, step, extra or {}, metrics or {}, run_id, time.perf_counter())
    with _told_as_save_failed(store):
        present = ranks.on_first(lambda: publish.present(store, step))
        if present is not None:
            return Saving(order, present, None, None)
        state_bytes = sum(ranks.on_all(lambda: space.local_bytes(state)))
        temporary = ranks.on_first(lambda: publish.open_folder(order, state_bytes))
        with _dropped_on_failure(temporary):
            ranks.on_all(lambda: publish.require_shared(temporary))
            if stage is not None:
                state = ranks.each(lambda: stage(state))
            return Saving(order, None, temporary, Shards.plan(temporary / names.DCP, state))


@dataclass
class Saving:
    """A save that has begun.

    Attributes:
        order: What was asked for.
        present: The step's valid checkpoint, if it had one before.
        temporary: The folder in flight, if not.
        shards: This rank's part of it.
    """

    order: Order
    present: CheckpointInfo | None
    temporary: Path | None
    shards: Shards | None
    _written: Written | Exception | None = None

    def write(self) -> None:
        """Write this rank's shards. Not collective, on any thread; what fails is told by `finish`."""
        if self.shards is not None:
            try:
                self._written = self.shards.write()
            except Exception as error:
                self._written = error

    def finish(self) -> Saved:
        """Publish what all ranks have written. Collective; raises as `save` does."""
        if self.present is not None:
            return Saved(self.present, time.perf_counter() - self.order.began, fresh=False)
        temporary = self.temporary
        assert temporary is not None
        with _told_as_save_failed(self.order.store), _dropped_on_failure(temporary):
            info = ranks.through_first(self._result, lambda parts: self._commit(temporary, parts))
        return Saved(info, time.perf_counter() - self.order.began, fresh=True)

    def _result(self) -> Written:
        if isinstance(self._written, Exception):
            raise self._written
        assert self._written is not None
        return self._written

    def _commit(self, temporary: Path, parts: list[Written]) -> list[CheckpointInfo]:
        assert self.shards is not None
        return [publish.complete(self.order, temporary, self.shards.finish(parts))] * len(parts)


@contextmanager
def _dropped_on_failure(temporary: Path) -> Iterator[None]:
    try:
        yield
    except ranks.RanksFailed:
        ranks.on_first(lambda: storage.rmtree_if_possible(temporary))
        raise


@contextmanager
def quiet() -> Iterator[None]:
    """Silence what torch says of every save and load in a single process: that it is one."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"torch\.distributed is disabled, unavailable or uninitialized")
        yield


@contextmanager
def _told_as_save_failed(store: CheckpointStore) -> Iterator[None]:
    try:
        yield
    except ranks.RanksFailed as error:
        full = bool(error.errnos & mount.FULL)
        raise (DiskFull if full else SaveFailed)(
            f"no checkpoint was saved, earlier ones are as they were ({error})",
            field="checkpoints",
            value=str(store.root),
            remedy="free disk space, or keep fewer with [checkpoints] save_total_limit"
            if full
            else "mend what the message names; the next save tries again",
        ) from error
