"""Whether the checkpoints of a whole run will fit, said before its first step."""

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
    """Most that checkpoints will take, whichever of them turn out the best.

    Attributes:
        checkpoint_bytes: Size of one.
        peak_count: Most that lie on disk at once, the one in flight included.
        peak_bytes: Their size.
        free_bytes: What is free now.
        present_bytes: What present checkpoints take.
        fails_at_step: First step whose save will not fit; None if all fit.
        over_max_disk: Whether `max_disk` is too small for what always stays and the save in flight.
        policy: What it was worked out for.
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
        """Return the forecast as a line for people."""
        within = self.policy.keep_within
        text = (
            f"one checkpoint takes {told_bytes(self.checkpoint_bytes)}; the policy peaks at {self.peak_count} = "
            f"{told_bytes(self.peak_bytes)}"
            + (f", and what was saved within {within}" if within else "")
            + f"; {told_bytes(self.free_bytes)} are free"
            + (f" beside the {told_bytes(self.present_bytes)} there" if self.present_bytes else "")
        )
        return text if self.fails_at_step is None else f"{text}: will not fit from step {self.fails_at_step}"

    def warnings(self) -> list[str]:
        """Return what to do about it, where something is too small."""
        lines = []
        if self.fails_at_step is not None:
            lines.append(
                "free disk space, keep fewer with [checkpoints] save_total_limit or max_disk, or move "
                "the run with --output"
            )
        if self.over_max_disk:
            lines.append(
                f"max_disk = {self.policy.max_disk} is too little for what always stays and the save in "
                "flight, and will be exceeded"
            )
        return lines


def saves(policy: CheckpointsConfig, done: int, last: int) -> list[int]:
    """Steps that a run saves at, after `done` steps and up to its last one."""
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
    """Work out what the policy comes to over a run. What `keep_within` keeps is not known and not counted.

    Args:
        checkpoint_bytes: Of one; `space.local_bytes`, summed over ranks.
        policy: The recipe's `[checkpoints]`.
        steps: Of the saves to come, ascending (`saves`).
        free_bytes: Of the file system, now.
        existing: Valid checkpoints that are there.
    """
    checkpoint_bytes = max(checkpoint_bytes, 1)
    present_bytes = sum(c.num_bytes for c in existing)
    room_bytes = free_bytes + present_bytes
    present = sorted(c.step for c in existing)
    pinned = {c.step for c in existing if c.pinned}
    order = np.array([*present, *steps], np.int64)
    held, floor = _held(order, pinned, policy)
    held = np.maximum(np.minimum(held, _affordable(checkpoint_bytes, policy, room_bytes)), floor)
    # Before each save lies what the one before it left; nothing is deleted before the first.
    before = np.concatenate([[0], held])[len(present) : -1]
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


def _held(order: Counts, pinned: set[int], policy: CheckpointsConfig) -> tuple[Counts, Counts]:
    """Most that are kept after each save, and how many of them no limit touches.

    Worst is where the best are neither among the last nor milestones nor pinned.
    """
    count = np.arange(1, len(order) + 1)
    last = np.minimum(count, policy.keep_last)
    stays = np.isin(order, list(pinned))
    if policy.keep_every:
        stays |= order % policy.keep_every == 0
    older = np.maximum(count - policy.keep_last, 0)
    lasting = np.concatenate([[0], np.cumsum(stays)])[older]
    best = policy.keep_best.n if policy.keep_best else 0
    held = last + lasting + np.minimum(older - lasting, best)
    behind = np.concatenate([[0], np.cumsum(np.isin(order, list(pinned)))])[count - 1]
    floor = 1 + behind + np.minimum(count - 1 - behind, min(best, 1))
    if policy.save_total_limit is not None:
        held = np.maximum(np.minimum(count, policy.save_total_limit), floor)
    return held, floor


def _affordable(checkpoint_bytes: int, policy: CheckpointsConfig, room_bytes: int) -> int:
    """How many the budgets leave beside the save in flight."""
    budgets = [limit for limit in (policy.max_disk_bytes,) if limit is not None]
    if policy.min_free_bytes is not None:
        budgets.append(room_bytes - policy.min_free_bytes)
    return min((max(b, 0) // checkpoint_bytes for b in budgets), default=np.iinfo(np.int64).max // 2) - 1
