"""Apply the retention policy to a store."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from reelworks.core.errors import UserError
from reelworks.data.checkpoint import names, read_lock
from reelworks.data.checkpoint.config import Retention
from reelworks.data.checkpoint.folder import CheckpointFolder, CheckpointInfo
from reelworks.data.checkpoint.policy import Decision, PolicyTime, plan_retention
from reelworks.data.checkpoint.verify import damage
from reelworks.data.run.lock import LockLost


def plan(store: CheckpointFolder, policy: Retention, in_use: Collection[int] = ()) -> list[Decision]:
    """Return the decisions that `apply_retention` would carry out, and delete nothing.

    `in_use` are steps to keep besides those that a process reads through `read_lock.reading`.
    """
    infos, now = whole(store), time.time()
    in_use = {*in_use, *(info.step for info in infos if read_lock.is_read(info.path))}
    if not infos or (policy.max_disk is None and policy.min_free is None):
        return plan_retention(infos, policy, PolicyTime(now, in_use))
    in_flight = sum(folder_bytes(path) for path in store.root.glob(f"{names.IN_FLIGHT}*"))
    moment = PolicyTime(
        now,
        in_use,
        other_bytes=folder_bytes(store.root) - in_flight - sum(info.num_bytes for info in infos),
        next_bytes=max(infos[-1].num_bytes, in_flight),
        free_bytes=shutil.disk_usage(store.root).free + in_flight,
    )
    return plan_retention(infos, policy, moment)


def apply_retention(store: CheckpointFolder, policy: Retention, in_use: Collection[int] = ()) -> list[Decision]:
    """Delete the checkpoints that the policy does not keep, oldest first, and return all decisions; on rank 0."""
    decisions = plan(store, policy, in_use)
    for i, decision in enumerate(decisions):
        try:
            if not decision.keep:
                store.remove(decision.step, decision.reasons)
        except LockLost:
            raise
        except UserError as error:  # pinned or being read since the plan was made
            decisions[i] = Decision(decision.step, True, (error.problem,))
    return decisions


def prune(store: CheckpointFolder, policy: Retention) -> list[Decision]:
    """Sweep leftovers of dead processes, then apply the policy; for a command that holds the run's lock."""
    store.sweep()
    return apply_retention(store, policy)


def whole(store: CheckpointFolder) -> list[CheckpointInfo]:
    """Return the checkpoints whose files all exist with their sizes; damaged ones are not subject to retention."""
    return [info for info in store.list() if not damage(info.path)]


def folder_bytes(folder: Path) -> int:
    """Return the bytes of all files below a folder; files that vanish meanwhile do not count."""
    total = 0
    for parent, _, files in os.walk(folder):
        for name in files:
            with suppress(FileNotFoundError):
                total += (Path(parent) / name).lstat().st_size
    return total
