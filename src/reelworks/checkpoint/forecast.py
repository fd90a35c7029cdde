"""Forecast, before a run's first step, whether all its checkpoints will fit on the disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reelworks.checkpoint.config import CheckpointsConfig
from reelworks.checkpoint.disk_space import MARGIN
from reelworks.checkpoint.policy import CheckpointFacts
from reelworks.core.units import told_bytes

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Forecast:
    """Upper bound of the disk space that checkpoints will take, whichever of them turn out the best.

    Attributes:
        checkpoint_bytes: Bytes of one checkpoint.
        peak_count: Most checkpoints on disk at once, including the one being saved.
        peak_bytes: Bytes of `peak_count` checkpoints.
        free_bytes: Bytes that are free now.
        present_bytes: Bytes of the existing checkpoints.
        fails_at_step: First step whose save will not fit; None if all fit.
        over_max_disk: Whether `max_disk` is too small for the checkpoints that always stay and the next save.
        policy: The recipe's `[checkpoints]`.
    """

    checkpoint_bytes: int
    peak_count: int
    peak_bytes: int
    free_bytes: int
    present_bytes: int
    fails_at_step: int | None
    over_max_disk: bool
    policy: CheckpointsConfig

    def to_text(self) -> str:
        """Return the forecast as one line of text."""
        within = self.policy.keep_within
        text = (
            f"one checkpoint takes {told_bytes(self.checkpoint_bytes)}; the policy peaks at {self.peak_count} = "
            f"{told_bytes(self.peak_bytes)}"
            + (f", plus the checkpoints of the last {within}" if within else "")
            + f"; {told_bytes(self.free_bytes)} are free"
            + (f", existing checkpoints take {told_bytes(self.present_bytes)}" if self.present_bytes else "")
        )
        if self.fails_at_step is not None:
            text += f": checkpoints will not fit from step {self.fails_at_step} on"
        return text

    def warnings(self) -> list[str]:
        """Return one line for each limit that is too small, with its remedy."""
        lines = []
        if self.fails_at_step is not None:
            lines.append(
                "free disk space, keep fewer with [checkpoints] save_total_limit or max_disk, or move "
                "the run with --output"
            )
        if self.over_max_disk:
            lines.append(
                f"max_disk = {self.policy.max_disk} is too small for the checkpoints that always stay and "
                "the next save, and will be exceeded"
            )
        return lines


def saves(policy: CheckpointsConfig, done: int, last: int) -> list[int]:
    """Return the steps at which a run saves, after `done` steps and up to its last one."""
    every = policy.every_steps
    regular = range(done - done % every + every, last + 1, every) if every else range(0)
    return sorted({*regular, last} - {done})


def forecast(
    checkpoint_bytes: int,
    policy: CheckpointsConfig,
    steps: Sequence[int],
    free_bytes: int,
    existing: Sequence[CheckpointFacts] = (),
) -> Forecast:
    """Simulate the policy over a run. Checkpoints that only `keep_within` keeps cannot be foreseen, nor counted.

    Args:
        checkpoint_bytes: Bytes of one checkpoint: `shards.local_bytes`, summed over ranks.
        policy: The recipe's `[checkpoints]`.
        steps: Steps of the saves to come, ascending (`saves`).
        free_bytes: Free bytes of the file system now.
        existing: Valid checkpoints on disk.
    """
    checkpoint_bytes = max(checkpoint_bytes, 1)
    present_bytes = sum(c.num_bytes for c in existing)
    room_bytes = free_bytes + present_bytes
    present = sorted(c.step for c in existing)
    pinned = {c.step for c in existing if c.pinned}
    order = np.array([*present, *steps], np.int64)
    retained, floor = _retained(order, pinned, policy)
    retained = np.maximum(np.minimum(retained, _affordable(checkpoint_bytes, policy, room_bytes)), floor)
    # Retention runs after each save, so nothing is deleted before the first.
    before = np.concatenate([[0], retained])[len(present) : -1]
    before[:1] = len(present)
    at_once = before + 1
    peak = int(at_once.max(initial=len(present)))
    fits = before * checkpoint_bytes + checkpoint_bytes * MARGIN <= room_bytes
    limit = policy.max_disk_bytes
    least = int(floor[-1]) + 1 if len(floor) else 0
    return Forecast(
        checkpoint_bytes,
        peak,
        peak * checkpoint_bytes,
        free_bytes,
        present_bytes,
        None if fits.all() else int(steps[int(fits.argmin())]),
        limit is not None and least * checkpoint_bytes > limit,
        policy,
    )


def _retained(order: Counts, pinned: set[int], policy: CheckpointsConfig) -> tuple[Counts, Counts]:
    """Return the most checkpoints retained after each save, and how many of them no limit may delete.

    In the worst case the best are neither among the last nor multiples of `keep_every` nor pinned.
    """
    count = np.arange(1, len(order) + 1)
    last = np.minimum(count, policy.keep_last)
    stays = np.isin(order, list(pinned))
    if policy.keep_every:
        stays |= order % policy.keep_every == 0
    older = np.maximum(count - policy.keep_last, 0)
    lasting = np.concatenate([[0], np.cumsum(stays)])[older]
    best = policy.keep_best.n if policy.keep_best else 0
    retained = last + lasting + np.minimum(older - lasting, best)
    behind = np.concatenate([[0], np.cumsum(np.isin(order, list(pinned)))])[count - 1]
    floor = 1 + behind + np.minimum(count - 1 - behind, min(best, 1))
    if policy.save_total_limit is not None:
        retained = np.maximum(np.minimum(count, policy.save_total_limit), floor)
    return retained, floor


def _affordable(checkpoint_bytes: int, policy: CheckpointsConfig, room_bytes: int) -> int:
    """Return how many checkpoints the budgets allow besides the one being saved."""
    budgets = [limit for limit in (policy.max_disk_bytes,) if limit is not None]
    if policy.min_free_bytes is not None:
        budgets.append(room_bytes - policy.min_free_bytes)
    return min((max(b, 0) // checkpoint_bytes for b in budgets), default=np.iinfo(np.int64).max // 2) - 1
