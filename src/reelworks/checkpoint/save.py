"""Save a checkpoint: write it to a temporary folder, check it, and publish it by one rename.

    space check → new temporary folder → every rank writes its shards through torch.distributed.checkpoint
    and digests them → manifest, last → fsync → rename to a free name → fsync of the parent → history

A checkpoint exists exactly if its rename happened. An error or a crash before that loses this save and nothing
else; a failure on one rank raises the same error on all.
"""

from __future__ import annotations

import os
import platform
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
import torch

import reelworks
from reelworks.checkpoint import disk_space, manifest, names, shards
from reelworks.checkpoint.manifest import BadCheckpoint, FileEntry, Manifest
from reelworks.checkpoint.shards import Shards, Written
from reelworks.checkpoint.store import CheckpointInfo, CheckpointStore
from reelworks.checkpoint.verify import verify
from reelworks.core import digests, storage
from reelworks.core.errors import UserError
from reelworks.distributed import collectives


class SaveFailed(UserError):  # noqa: N818
    """A checkpoint could not be saved; earlier ones are unchanged."""


class DiskFull(SaveFailed):
    """The disk or the quota has too little room for one more checkpoint."""


@dataclass(frozen=True)
class Saved:
    """Result of a save, equal on all ranks; `fresh` is False if the step had a valid checkpoint, which was kept."""

    info: CheckpointInfo
    seconds: float
    fresh: bool

    @property
    def bytes(self) -> int:
        """Size of the checkpoint's files."""
        return self.info.num_bytes


class SaveDetails(TypedDict, total=False):
    """Contents of a checkpoint besides its state."""

    extra: Mapping[str, bytes]  # small files by name, such as `cursor.json`; only those of rank 0 are written
    metrics: Mapping[str, float]  # those known by now
    run_id: str  # the run's id in `run.json`


def save(store: CheckpointStore, step: int, state: dict[str, Any], **details: Unpack[SaveDetails]) -> Saved:
    """Write and publish a checkpoint. Collective over the default process group, if there is one.

    The store is the same folder on all ranks. The state is nested dicts of tensors, DTensors and plain values, e.g.
    `{"model": ..., "optimizer": ...}`.

    Raises:
        DiskFull: The disk has too little room, before or while writing.
        SaveFailed: Any rank failed for another reason.
    """
    saving = begin(store, step, state, **details)
    saving.write()
    return saving.finish()


def begin(
    store: CheckpointStore,
    step: int,
    state: dict[str, Any],
    stage: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    **details: Unpack[SaveDetails],
) -> Saving:
    """Begin a save that `Saving.write` and `Saving.finish` complete; otherwise as `save`. Collective.

    `stage` copies the state after the space check. Without it the state must not change until it is written.
    """
    saving = Saving(store, step, **details)
    with _raising_save_failed(store):
        saving.present = collectives.on_first(lambda: _present(store, step))
        if saving.present is not None:
            return saving
        state_bytes = sum(collectives.on_all(lambda: shards.local_bytes(state)))
        saving.temporary = temporary = collectives.on_first(lambda: saving.open_folder(state_bytes))
        with _removed_on_failure(temporary):
            collectives.on_all(lambda: _require_shared(temporary))
            if stage is not None:
                state = collectives.each(lambda: stage(state))
            saving.shards = Shards.plan(temporary / names.DCP, state)
    return saving


def _present(store: CheckpointStore, step: int) -> CheckpointInfo | None:
    """Return the valid checkpoint of a step, if there is one; a bad one is quarantined when publishing."""
    if step not in store.steps():
        return None
    try:
        verify(store.path(step), full=True)
    except BadCheckpoint:
        return None
    return store.info(step)


def _require_shared(temporary: Path) -> None:
    """Refuse a folder that only rank 0 sees, since its manifest could not cover the other ranks' files."""
    if not (temporary / names.DCP).is_dir():
        raise RuntimeError(f"{temporary.parent} is not the same folder here as on rank 0")


@dataclass
class Saving:
    """A save that has begun.

    If the step was saved before, `present` is its valid checkpoint, and nothing is written to `temporary`.
    """

    store: CheckpointStore
    step: int
    extra: Mapping[str, bytes] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    run_id: str = ""
    began: float = field(default_factory=time.perf_counter)
    present: CheckpointInfo | None = None
    temporary: Path | None = None
    shards: Shards | None = None
    _written: Written | Exception | None = None

    def open_folder(self, state_bytes: int) -> Path:
        """Create the temporary folder; raises `OSError` if the disk has too little room or fails."""
        root = self.store.root
        storage.mkdirs(root)
        disk_space.require(root, state_bytes + sum(map(len, self.extra.values())))
        temporary = root / names.in_flight(self.step, names.fresh_id())
        storage.mkdir(temporary)
        try:
            storage.mkdir(temporary / names.DCP)
        except OSError:
            storage.rmtree_if_possible(temporary)
            raise
        return temporary

    def write(self) -> None:
        """Write this rank's shards. Not collective; may run on any thread. `finish` raises its errors."""
        if self.shards is not None:
            try:
                self._written = self.shards.write()
            except Exception as error:
                self._written = error

    def finish(self) -> Saved:
        """Publish what all ranks have written. Collective; raises as `save` does."""
        if self.present is not None:
            return Saved(self.present, time.perf_counter() - self.began, fresh=False)
        temporary = self.temporary
        assert temporary is not None
        with _raising_save_failed(self.store), _removed_on_failure(temporary):
            info = collectives.through_first(self._result, lambda parts: self._commit(temporary, parts))
        return Saved(info, time.perf_counter() - self.began, fresh=True)

    def _result(self) -> Written:
        if isinstance(self._written, Exception):
            raise self._written
        assert self._written is not None
        return self._written

    def _commit(self, temporary: Path, parts: list[Written]) -> list[CheckpointInfo]:
        """Write extra files and the manifest, publish the folder and record it in the history."""
        assert self.shards is not None
        entries = self.shards.finish(parts)
        entries += [_write_extra(temporary, name, data) for name, data in self.extra.items()]
        manifest.write(temporary, self._manifest(temporary.name.rpartition("-")[2], entries))
        # Also proves that rank 0 sees the files of the other nodes.
        verify(temporary, full=False)
        if os.path.lexists(self.store.path(self.step)):
            self.store.quarantine(self.step, "failed verification when its step was saved again")
        self.store.publish(temporary, self.step)
        info = self.store.info(self.step)
        # The checkpoint counts even if the disk has no room left for its line in the history.
        with suppress(OSError):
            self.store.record_saved(info, time.perf_counter() - self.began)
        return [info] * len(parts)

    def _manifest(self, save_id: str, entries: list[FileEntry]) -> Manifest:
        cursor = self.extra.get(names.CURSOR)
        return Manifest(
            format=manifest.FORMAT_VERSION,
            step=self.step,
            save_id=save_id,
            created=time.time(),
            world_size=collectives.world_size(),
            run_id=self.run_id,
            cursor_digest=None if cursor is None else digests.digest_bytes(cursor),
            files=tuple(entries),
            total_bytes=sum(entry.size for entry in entries),
            metrics=manifest.plain_metrics(self.metrics),
            versions={
                "reelworks": reelworks.__version__,
                "torch": str(torch.__version__),
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
        )


def _write_extra(temporary: Path, name: str, data: bytes) -> FileEntry:
    if "/" in name or not manifest.is_inside(name) or name in (names.DCP, manifest.FILE_NAME):
        raise ValueError(f"{name!r} cannot name an extra file")
    with storage.create(temporary / name) as file:
        file.write(data)
    return FileEntry(path=name, size=len(data), digest=digests.of_bytes(data))


@contextmanager
def _removed_on_failure(temporary: Path) -> Iterator[None]:
    try:
        yield
    except collectives.RanksFailed:
        collectives.on_first(lambda: storage.rmtree_if_possible(temporary))
        raise


@contextmanager
def quiet() -> Iterator[None]:
    """Silence torch's warning about every save and load without a process group."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"torch\.distributed is disabled, unavailable or uninitialized")
        yield


@contextmanager
def _raising_save_failed(store: CheckpointStore) -> Iterator[None]:
    try:
        yield
    except collectives.RanksFailed as error:
        full = bool(error.errnos & disk_space.FULL)
        raise (DiskFull if full else SaveFailed)(
            f"no checkpoint was saved, earlier ones are unchanged ({error})",
            code="disk-full" if full else "save-failed",
            field="checkpoints",
            value=str(store.root),
            remedy="free disk space, or keep fewer with [checkpoints] save_total_limit"
            if full
            else "fix the cause named above; the next save tries again",
        ) from error
