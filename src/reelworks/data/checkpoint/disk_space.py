"""Probe the disk of the checkpoints and forecast before training whether they fit; check its space before each save."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reelworks.core import storage, system, units
from reelworks.core.arrays import I64, Mask
from reelworks.core.errors import UserError
from reelworks.data.checkpoint import names
from reelworks.data.checkpoint.config import CheckpointsConfig
from reelworks.data.checkpoint.policy import CheckpointFacts

# Errors of a full disk and of a full quota; the free bytes do not account for quotas.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
# Required free space, as a multiple of the estimated size of a save.
MARGIN = 1.02
_PROBE_BYTES = 1 << 16
_MOST_SAVES = 10_000  # that are foreseen; a run without an end has any number


@dataclass(frozen=True)
class Mount:
    """Result of probing a file system."""

    path: Path  # the folder with links resolved; it may lie on another disk than the run
    free_bytes: int  # without regard to quotas
    locks: bool  # whether files can be locked; if not, a second training in the same folder is not detected


def probe(folder: Path) -> Mount:
    """Write, sync, rename, lock and remove a small file in a run's `checkpoints/`, which is created if missing.

    Raises:
        UserError: One of these fails, as every save would; names the operation.
    """
    # Named like a save in progress, so that the next sweep removes it after a crash.
    temporary = folder / names.fresh("tmp", 0)
    target = folder / names.fresh("tmp", 0)
    doing = "be created"
    try:
        storage.mkdirs(folder)
        doing = "be written to"
        with storage.create(temporary) as file:
            file.write(bytes(_PROBE_BYTES))
            locks = _locks(file.fileno())
        doing = "rename files"
        storage.rename(temporary, target)
        storage.fsync_folder(folder)
        free_bytes = shutil.disk_usage(folder).free
    except OSError as error:
        is_full = error.errno in FULL
        raise UserError(
            f"the checkpoint folder cannot {doing} ({error.strerror or error})",
            code="checkpoints-unwritable",
            field="checkpoints",
            value=str(folder),
            remedy="free disk space or raise the quota, or choose another --output"
            if is_full
            else "fix its permissions or its disk, or choose another --output",
        ) from error
    finally:
        for path in (temporary, target):
            storage.rmtree_if_possible(path)
    return Mount(folder.resolve(), free_bytes, locks)


def _locks(fd: int) -> bool:
    with suppress(OSError):
        system.lock(fd)
        system.unlock(fd)
        return True
    return False


def require(folder: Path, need_bytes: int, what: str = "a checkpoint") -> None:
    """Raise the `OSError` of a full disk if a folder's disk lacks room for `need_bytes` and a margin; names `what`."""
    need_bytes, free_bytes = int(need_bytes * MARGIN), shutil.disk_usage(folder).free
    if free_bytes < need_bytes:
        raise OSError(errno.ENOSPC, f"{what} needs {units.size(need_bytes)}, {units.size(free_bytes)} are free")


@dataclass(frozen=True)
class DiskForecast:
    """Upper bound of the disk space that checkpoints will take, whichever of them turn out the best."""

    checkpoint_bytes: int
    peak_count: int  # most checkpoints on disk at once, including the one being saved
    free_bytes: int
    present_bytes: int  # of the existing checkpoints
    fails_at_step: int | None  # first step whose save will not fit; None if all fit
    over_max_disk: bool  # whether `max_disk` is too small for the checkpoints that always stay and the next save
    policy: CheckpointsConfig

    def to_text(self) -> str:
        """Return the forecast as one line of text."""
        peak_bytes = self.peak_count * self.checkpoint_bytes
        text = f"one checkpoint takes {units.size(self.checkpoint_bytes)}; "
        text += f"the policy peaks at {self.peak_count} = {units.size(peak_bytes)}"
        if self.policy.keep_within:
            text += f", plus the checkpoints of the last {self.policy.keep_within}"
        text += f"; {units.size(self.free_bytes)} are free"
        if self.present_bytes:
            text += f", existing checkpoints take {units.size(self.present_bytes)}"
        if self.fails_at_step is not None:
            text += f": checkpoints will not fit from step {self.fails_at_step} on"
        return text

    def warnings(self) -> list[str]:
        """Return one line for each limit that is too small, with its remedy."""
        lines = []
        if self.fails_at_step is not None:
            lines.append(
                "free disk space, keep fewer with [checkpoints] save_total_limit or max_disk, or move the run with --output"
            )
        if self.over_max_disk:
            lines.append(
                f"max_disk = {self.policy.max_disk} is too small for the checkpoints that always stay and the next save"
            )
        return lines


def saves(
    policy: CheckpointsConfig, done: int, last: int, epoch: int | None = None, validations: int | None = None
) -> list[int]:
    """Return the steps at which a run may save, after `done` steps and up to its last one; of very many the first and the last.

    `epoch` and `validations` are the steps between two ends of epochs and two validations, if they are known. Saves by minutes
    may fall on any step, and few of them on a multiple of `keep_every`.
    """
    every = [policy.every_steps, policy.at_epoch_end and epoch, policy.at_best and validations]
    found = {step for n in every if n for step in range(done - done % n + n, last + 1, n)[:_MOST_SAVES]}
    if policy.every_minutes is not None:
        rare = policy.keep_every if policy.keep_every != 1 else None
        found.update(n for n in range(done + 1, last + 1)[:_MOST_SAVES] if rare is None or n % rare)
    return sorted({*found, last} - {done})


def forecast(
    checkpoint_bytes: int,
    policy: CheckpointsConfig,
    steps: Sequence[int],
    free_bytes: int,
    existing: Sequence[CheckpointFacts] = (),
) -> DiskForecast:
    """Simulate the policy over a run. Checkpoints that only `keep_within` keeps cannot be foreseen, nor counted.

    Args:
        checkpoint_bytes: Bytes of one checkpoint: `shards.num_bytes`, summed over ranks.
        steps: Steps of the saves to come, ascending (`saves`).
        existing: Valid checkpoints on disk.
    """
    checkpoint_bytes = max(checkpoint_bytes, 1)
    present_bytes = sum(c.num_bytes for c in existing)
    room_bytes = free_bytes + present_bytes
    present = sorted(c.step for c in existing)
    order = np.array([*present, *steps], np.int64)
    retained, floor = _retained(order, np.isin(order, [c.step for c in existing if c.pinned]), policy)
    retained = np.maximum(np.minimum(retained, _affordable(checkpoint_bytes, policy, room_bytes)), floor)
    # Retention runs after each save, and before the first one of a start.
    before = np.concatenate([[0], retained])[len(present) : -1]
    peak = int((before + 1).max(initial=len(present)))
    fits = before * checkpoint_bytes + checkpoint_bytes * MARGIN <= room_bytes
    limit, least = policy.max_disk_bytes, int(floor[-1]) + 1 if len(floor) else 0
    return DiskForecast(
        checkpoint_bytes,
        peak,
        free_bytes,
        present_bytes,
        None if fits.all() else int(steps[int(fits.argmin())]),
        limit is not None and least * checkpoint_bytes > limit,
        policy,
    )


def _retained(order: I64, pinned: Mask, policy: CheckpointsConfig) -> tuple[I64, I64]:
    """Return the most checkpoints retained after each save, and how many of them no limit may delete.

    In the worst case the best, and the best of a former series, are neither among the last nor multiples of `keep_every` nor
    pinned.
    """
    count = np.arange(1, len(order) + 1)
    last = np.minimum(count, policy.keep_last)
    stays = pinned | (order % policy.keep_every == 0) if policy.keep_every else pinned
    older = np.maximum(count - policy.keep_last, 0)
    lasting = np.concatenate([[0], np.cumsum(stays)])[older]
    best = policy.keep_best.n + 1 if policy.keep_best else 0
    retained = last + lasting + np.minimum(older - lasting, best)
    behind = np.concatenate([[0], np.cumsum(pinned)])[count - 1]
    floor = 1 + behind + np.minimum(count - 1 - behind, min(best, 1))
    if policy.save_total_limit is not None:
        retained = np.maximum(np.minimum(count, policy.save_total_limit), floor)
    return retained, floor


def _affordable(checkpoint_bytes: int, policy: CheckpointsConfig, room_bytes: int) -> int:
    """Return how many checkpoints the budgets allow besides the one being saved."""
    budgets = [] if policy.max_disk_bytes is None else [policy.max_disk_bytes]
    if policy.min_free_bytes is not None:
        budgets.append(room_bytes - policy.min_free_bytes)
    return min((max(b, 0) // checkpoint_bytes for b in budgets), default=np.iinfo(np.int64).max // 2) - 1
