"""Asynchronous saves: staged in memory, written by a thread, published by the trainer.

One save can be in progress. Staging copies the state into memory that later saves reuse; the thread only writes;
the trainer asks whether all ranks have written, and publishes. The thread dies with its process, and the next
start sweeps its temporary folder.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

import psutil
import torch
from torch import Tensor
from torch.distributed.checkpoint._state_dict_stager import StateDictStager

from reelworks.core import units
from reelworks.data.checkpoint import save, shards
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.checkpoint.save import Saved, SaveDetails, Saving
from reelworks.data.distributed import collectives
from reelworks.data.distributed.mesh import local

_CGROUP = Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """Return the memory that machine and container have left."""
    of_machine = int(psutil.virtual_memory().available)
    try:
        limit, used = (
            (_CGROUP / name).read_text(encoding="utf-8").strip() for name in ("memory.max", "memory.current")
        )
        cached = dict(line.split() for line in (_CGROUP / "memory.stat").read_text(encoding="utf-8").splitlines())
    except OSError:
        return of_machine
    if limit == "max":
        return of_machine
    # The system evicts cached files when memory is needed.
    return min(of_machine, max(int(limit) - int(used) + int(cached.get("inactive_file", 0)), 0))


@dataclass
class Background:
    """Saver of one checkpoint at a time; `processes_on_host` ranks share this machine's memory and stage together."""

    processes_on_host: int = 1
    _stager: StateDictStager | None = None
    _staged_bytes: int = 0
    _saving: Saving | None = None
    _thread: threading.Thread | None = field(default=None, repr=False)

    @property
    def step(self) -> int | None:
        """Step that is being saved; None if no save is in progress."""
        return None if self._saving is None else self._saving.step

    @property
    def is_writing(self) -> bool:
        """Whether this rank's thread is writing."""
        return self._thread is not None and self._thread.is_alive()

    def lacks_memory(self, state: dict[str, Any]) -> str:
        """Return why a state cannot be staged, empty if it can. Collective, and equal on all ranks."""
        need_bytes = max(held_bytes(shards.tensors_in(state)) - self._staged_bytes, 0) * self.processes_on_host
        free_bytes = available_bytes()
        short = collectives.on_all(lambda: (need_bytes, free_bytes) if need_bytes > free_bytes else None)
        for rank, numbers in enumerate(short):
            if numbers is not None:
                need, free = map(units.size, numbers)
                return f"rank {rank} has {free} of memory left, and staging takes {need}"
        return ""

    def start(self, store: CheckpointFolder, step: int, state: dict[str, Any], **details: Unpack[SaveDetails]) -> None:
        """Stage a state and begin to write it. Collective; the state may change as soon as this returns."""
        assert self._saving is None, "a save is in progress"
        self._saving = save.begin(store, step, state, stage=self._stage, **details)
        self._thread = threading.Thread(target=self._saving.write, name="checkpoint", daemon=True)
        self._thread.start()

    def finish(self) -> Saved:
        """Wait for this rank's thread and publish the checkpoint. Collective; another save can start then."""
        assert self._saving is not None
        assert self._thread is not None
        self._thread.join()
        saving, self._saving, self._thread = self._saving, None, None
        return saving.finish()

    def _stage(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        pinned = torch.cuda.is_available()
        if self._stager is None:
            # Not DefaultStager, which in torch 2.11 serves a single save.
            self._stager = StateDictStager(pin_memory=pinned, share_memory=False)
        staged = self._stager.stage(tensors, non_blocking=pinned)
        if pinned:
            torch.cuda.synchronize()
        assert isinstance(staged, dict)
        self._staged_bytes = held_bytes(tensors.values())
        return staged


def held_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of tensors on this rank, replicas included."""
    return sum(local(tensor).nbytes for tensor in tensors)
