"""Save a checkpoint: write it to a temporary folder, check it, and publish it by one rename.

    space check → new temporary folder → every rank writes its tensors and digests them → everything else of the
    state → manifest, last → fsync → rename to a free name → fsync of the parent → history

A checkpoint exists exactly if its rename happened. An error or a crash before that loses this save and nothing
else; a failure on one rank raises the same error on all.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor

from reelworks.core import digests, storage, version
from reelworks.core.errors import CommonError, UserError
from reelworks.data.checkpoint import disk_space, manifest, names, shards, state_file
from reelworks.data.checkpoint.folder import CheckpointFolder, CheckpointInfo
from reelworks.data.checkpoint.manifest import BadCheckpoint, FileEntry, Manifest
from reelworks.data.checkpoint.shards import Shards, Written
from reelworks.data.checkpoint.state_file import EncodedState
from reelworks.data.checkpoint.verify import verify
from reelworks.data.distributed import collectives


class SaveFailed(UserError):  # noqa: N818
    """A checkpoint could not be saved; earlier ones are unchanged."""


class DiskFull(SaveFailed):
    """The disk or the quota has too little room for one more checkpoint."""


@dataclass(frozen=True)
class Saved:
    """Result of a save, equal on all ranks; `fresh` is False if the step had a checkpoint of this content, which stays."""

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
    measured_on: Mapping[str, str]  # of metrics, digests of what they were measured on
    run_id: str  # the run's id in `run.json`
    stage_name: str  # of the recipe; empty without stages


def save(store: CheckpointFolder, step: int, state: Mapping[str, Any], **details: Unpack[SaveDetails]) -> Saved:
    """Write and publish a checkpoint. Collective over the default process group, if there is one.

    The store is the same folder on all ranks. The state is what `state_file.encode` takes: objects with a `state_dict`,
    tensors, DTensors, and plain values in dicts and lists, by the names of parts.

    Raises:
        DiskFull: The disk has too little room, before or while writing.
        SaveFailed: Any rank failed for another reason.
        UserError: A value cannot be stored so that it comes back.
    """
    saving = begin(store, step, state, **details)
    saving.write()
    return saving.finish()


def begin(
    store: CheckpointFolder,
    step: int,
    state: Mapping[str, Any],
    stage: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None,
    **details: Unpack[SaveDetails],
) -> Saving:
    """Begin a save that `Saving.write` and `Saving.finish` complete; otherwise as `save`. Collective.

    `stage` copies the tensors after the space check. Without it they must not change until they are written.
    """
    with _raising_save_failed(store):
        encoded = state_file.encode(state)
        tensors = encoded.tensors
        saving = Saving(store, step, encoded, **details)
        state_bytes = sum(collectives.on_all(lambda: shards.num_bytes(tensors.values()) + encoded.num_bytes))
        saving.temporary = temporary = collectives.on_first(lambda: saving.open_folder(state_bytes))
        with _removed_on_failure(temporary):
            collectives.on_all(lambda: _require_shared(temporary))
            if stage is not None:
                tensors = collectives.each(lambda: stage(tensors))
            saving.shards = Shards.plan(temporary, tensors)
    return saving


def _require_shared(temporary: Path) -> None:
    """Refuse a folder that only rank 0 sees, since its manifest could not cover the other ranks' files."""
    if not (temporary / names.TENSORS).is_dir():
        raise RuntimeError(f"{temporary.parent} is not the same folder here as on rank 0")


@dataclass
class Saving:
    """A save that has begun."""

    store: CheckpointFolder
    step: int
    encoded: EncodedState
    extra: Mapping[str, bytes] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    measured_on: Mapping[str, str] = field(default_factory=dict)
    run_id: str = ""
    stage_name: str = ""
    began: float = field(default_factory=time.perf_counter)
    temporary: Path | None = None
    shards: Shards | None = None
    _written: Written | Exception | None = None

    def open_folder(self, state_bytes: int) -> Path:
        """Create the temporary folder; raises `OSError` if the disk has too little room or fails."""
        root = self.store.root
        storage.mkdirs(root)
        disk_space.require(root, state_bytes + sum(map(len, self.extra.values())))
        temporary = root / names.fresh("tmp", self.step)
        storage.mkdir(temporary)
        try:
            storage.mkdir(temporary / names.TENSORS)
        except OSError:
            storage.rmtree_if_possible(temporary)
            raise
        return temporary

    def write(self) -> None:
        """Write this rank's tensors. Not collective; may run on any thread. `finish` raises its errors."""
        assert self.shards is not None
        try:
            self._written = self.shards.write()
        except Exception as error:
            self._written = error

    def finish(self) -> Saved:
        """Publish what all ranks have written. Collective; raises as `save` does."""
        temporary = self.temporary
        assert temporary is not None
        with _raising_save_failed(self.store), _removed_on_failure(temporary):
            info, fresh = collectives.through_first(self._result, lambda parts: self._commit(temporary, parts))
        return Saved(info, time.perf_counter() - self.began, fresh)

    def _result(self) -> Any:
        if isinstance(self._written, Exception):
            raise self._written
        own = {part: node for part, node in self.encoded.nodes.items() if part in self.encoded.per_rank}
        return self._written, own

    def _commit(self, temporary: Path, results: list[Any]) -> list[tuple[CheckpointInfo, bool]]:
        """Write everything but the tensors, the manifest last, publish the folder and record it in the history."""
        assert self.shards is not None
        written, nodes = [part for part, _ in results], [own for _, own in results]
        entries = [entry for part in written for entry in part.entries]
        storage.fsync_folder(temporary / names.TENSORS)
        entries.append(state_file.write(temporary, self.encoded, nodes, self.shards.index(written)))
        entries += [_write_extra(temporary, name, data) for name, data in self.extra.items()]
        manifest.write(temporary, self._manifest(temporary.name.rpartition("-")[2], entries))
        # Also proves that rank 0 sees the files of the other nodes.
        verify(temporary, full=False)
        fresh = not self._is_saved(entries)
        if fresh:
            self.store.publish(temporary, self.step)
        else:
            storage.rmtree_if_possible(temporary)
        info = self.store.info(self.step)
        # The checkpoint counts even if the disk has no room left for its line in the history.
        with suppress(OSError):
            if fresh:
                self.store.record_saved(info, time.perf_counter() - self.began)
            elif self.metrics:
                self.store.record_metrics(self.step, self.metrics, self.measured_on)
        return [(info, fresh)] * len(results)

    def _is_saved(self, entries: list[FileEntry]) -> bool:
        """Whether the step has a valid checkpoint with the same content."""
        if self.step not in self.store.steps():
            return False
        with suppress(BadCheckpoint, OSError):
            verify(self.store.path(self.step), full=True)
            return set(self.store.info(self.step).manifest.files) == set(entries)
        return False

    def _manifest(self, save_id: str, entries: list[FileEntry]) -> Manifest:
        cursor = self.extra.get(names.CURSOR)
        return Manifest(
            format=manifest.FORMAT_VERSION,
            step=self.step,
            save_id=save_id,
            created=time.time(),
            world_size=collectives.world_size(),
            run_id=self.run_id,
            stage=self.stage_name,
            cursor_digest=None if cursor is None else digests.digest_bytes(cursor),
            files=tuple(entries),
            total_bytes=sum(entry.size for entry in entries),
            metrics=manifest.plain_metrics(self.metrics),
            measured_on=dict(self.measured_on),
            versions={
                "reelworks": version.__version__,
                "torch": str(torch.__version__),
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
        )


def _write_extra(temporary: Path, name: str, data: bytes) -> FileEntry:
    if "/" in name or not manifest.is_inside(name) or name in (names.TENSORS, names.STATE, manifest.FILE_NAME):
        raise ValueError(f"{name!r} cannot name an extra file")
    with storage.create(temporary / name) as file:
        file.write(data)
    return FileEntry(path=name, size=len(data), digest=digests.of_bytes(data))


@contextmanager
def _removed_on_failure(temporary: Path) -> Iterator[None]:
    try:
        yield
    except (collectives.RanksFailed, CommonError):
        collectives.on_first(lambda: storage.rmtree_if_possible(temporary))
        raise


@contextmanager
def _raising_save_failed(store: CheckpointFolder) -> Iterator[None]:
    try:
        yield
    except (collectives.RanksFailed, BadCheckpoint) as error:
        full = isinstance(error, collectives.RanksFailed) and bool(error.errnos & disk_space.FULL)
        raise (DiskFull if full else SaveFailed)(
            f"no checkpoint was saved, earlier ones are unchanged ({error})",
            code="disk-full" if full else "save-failed",
            field="checkpoints",
            value=str(store.root),
            remedy="free disk space, or keep fewer checkpoints with save_total_limit"
            if full
            else "fix the cause named above; the next save tries again",
        ) from error
