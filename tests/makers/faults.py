"""Power cuts at chosen points: the process kills itself around a real function.

For tests of a training that must survive them. Nothing in the product knows of these points.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import killing

from reelworks.core import system
from reelworks.data.checkpoint import manifest
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.checkpoint.shards import Shards
from reelworks.data.run.events import EventLog
from reelworks.models.precision.boundary import DtypeBoundary
from reelworks.training.step.optimizers import ShardedOptimizer
from reelworks.training.step.state import TrainState

# Point: owner of a function, its name, and whether the process dies before or after the call.
Points = dict[str, tuple[Any, str, str]]
IN_A_STEP: Points = {
    "after a forward pass": (DtypeBoundary, "__call__", "after"),
    "before the optimizer steps": (ShardedOptimizer, "step", "before"),
    "after the optimizer stepped": (ShardedOptimizer, "step", "after"),
    "after the average moved": (TrainState, "update_ema", "after"),
}
IN_A_SAVE: Points = {
    "before shards are written": (Shards, "write", "before"),
    "after shards are written": (Shards, "write", "after"),
    "before the manifest is written": (manifest, "write", "before"),
    "before the commit's rename": (CheckpointFolder, "publish", "before"),
}
AROUND_A_COMMIT: Points = {
    "before a step is told": (EventLog, "write", "before"),
    "after the commit's rename": (CheckpointFolder, "publish", "after"),
    "before retention deletes": (CheckpointFolder, "remove", "before"),
    "after retention deleted": (CheckpointFolder, "remove", "after"),
}
POINTS: Points = {**IN_A_STEP, **IN_A_SAVE, **AROUND_A_COMMIT}


def kill_at(point: str, call: int) -> None:
    """Arm a fault: this process dies at the `call`-th pass (from 1) of a point."""
    owner, name, when = POINTS[point]
    at_call(owner, name, call, lambda: killing.kill_self(), when=when)


def ask_to_leave() -> None:
    """Send this process the signal of a scheduler that needs its machine."""
    signal.raise_signal(system.END)


def at_call(owner: Any, name: str, call: int, do: Callable[[], object], *, when: str = "before") -> None:
    """Do something, such as to raise an error, before or after the `call`-th call (from 1) of a real function."""
    original, passed = getattr(owner, name), 0

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal passed
        passed += 1
        if when == "before" and passed == call:
            do()
        result = original(*args, **kwargs)
        if when == "after" and passed == call:
            do()
        return result

    setattr(owner, name, wrapped)
