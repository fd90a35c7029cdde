"""A save's folder: made if the checkpoint fits, completed and published. On rank 0, but for `require_shared`."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import reelworks
from reelworks.checkpoint import manifest, names, ranks, space
from reelworks.checkpoint.manifest import BadCheckpoint, FileEntry, Manifest
from reelworks.checkpoint.store import CheckpointInfo, CheckpointStore
from reelworks.checkpoint.verify import verify
from reelworks.core import checksums, digests, storage


@dataclass(frozen=True)
class Order:
    """What `commit.begin` was asked for."""

    store: CheckpointStore
    step: int
    extra: Mapping[str, bytes]
    metrics: Mapping[str, float]
    run_id: str
    began: float


def present(store: CheckpointStore, step: int) -> CheckpointInfo | None:
    """Look whether this step is saved already; what is there and bad is dealt with when publishing."""
    if step not in store.steps():
        return None
    try:
        verify(store.path(step), full=True)
    except BadCheckpoint:
        return None
    return store.info(step)


def open_folder(order: Order, state_bytes: int) -> Path:
    """Make the temporary folder if the checkpoint will fit."""
    root = order.store.root
    storage.mkdirs(root)
    space.require(root, state_bytes + sum(map(len, order.extra.values())))
    temporary = root / names.in_flight(order.step, names.fresh_id())
    storage.mkdir(temporary)
    try:
        storage.mkdir(temporary / names.DCP)
    except OSError:
        storage.rmtree_if_possible(temporary)
        raise
    return temporary


def require_shared(temporary: Path) -> None:
    """Refuse folders that only rank 0 sees: its manifest could not speak for the others' files."""
    if not (temporary / names.DCP).is_dir():
        raise RuntimeError(f"{temporary.parent} is not the same folder here as on rank 0")


def complete(order: Order, temporary: Path, entries: list[FileEntry]) -> CheckpointInfo:
    """Complete the temporary folder, publish it, and tell the history."""
    store, step = order.store, order.step
    for name, data in order.extra.items():
        entries.append(_write_extra(temporary, name, data))
    manifest.write(temporary, _manifest(order, temporary, entries))
    # Also proves that rank 0 sees what the other nodes have written.
    verify(temporary, full=False)
    if os.path.lexists(store.path(step)):
        store.quarantine(step, "failed verification when its step was saved again")
    store.publish(temporary, step)
    info = store.info(step)
    # The checkpoint is there, even if the disk has no room left to tell of it.
    with suppress(OSError):
        store.record_saved(info, time.perf_counter() - order.began)
    return info


def _manifest(order: Order, temporary: Path, entries: list[FileEntry]) -> Manifest:
    cursor = order.extra.get(names.CURSOR)
    return Manifest(
        format=manifest.FORMAT_VERSION,
        step=order.step,
        save_id=temporary.name.rpartition("-")[2],
        created=time.time(),
        world_size=ranks.world_size(),
        run_id=order.run_id,
        cursor_digest=None if cursor is None else digests.digest_bytes(cursor),
        files=tuple(entries),
        total_bytes=sum(entry.size for entry in entries),
        metrics=manifest.plain_metrics(order.metrics),
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
    return FileEntry(path=name, size=len(data), digest=checksums.of_bytes(data))
