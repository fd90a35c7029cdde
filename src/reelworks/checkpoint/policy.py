"""Retention as a pure function: which checkpoints stay, and why each one stays or goes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from reelworks.checkpoint.config import CheckpointsConfig, KeepBest


class Retainable(Protocol):
    """What the policy looks at; `store.CheckpointInfo` is one."""

    @property
    def step(self) -> int:
        """Optimizer steps done."""
        ...

    @property
    def pinned(self) -> bool:
        """True if a person asked to keep it."""
        ...

    @property
    def metrics(self) -> Mapping[str, float | None]:
        """Metrics known by now; None stands for a value that was not finite."""
        ...


@dataclass(frozen=True)
class Decision:
    """What becomes of one checkpoint; all reasons speak for what is done."""

    step: int
    keep: bool
    reasons: tuple[str, ...]


def plan_retention(
    checkpoints: Iterable[Retainable], policy: CheckpointsConfig, in_use: int | None = None
) -> list[Decision]:
    """Decide about each checkpoint; oldest first, whatever order they come in.

    The newest, the best, the pinned ones and the one in use stay in any case, so that no setting can
    leave a run without a way back. A metric that is NaN, infinite or missing is never best; equal
    values go to the newer. Applying a plan and planning again keeps everything.

    Args:
        checkpoints: Valid checkpoints only: a damaged one must not take the place of a good one.
        policy: The recipe's `[checkpoints]`.
        in_use: Step that is being read, exported or evaluated.
    """
    newest_first = sorted(checkpoints, key=lambda c: c.step, reverse=True)
    ranked = rank_best(newest_first, policy.keep_best)
    keep = {c.step: _reasons_to_keep(i, c, ranked, policy, in_use) for i, c in enumerate(newest_first)}
    if policy.save_total_limit is not None:
        keep = _limit(newest_first, keep, ranked, policy.save_total_limit, in_use)
    decisions = [
        Decision(c.step, True, keep[c.step])
        if keep[c.step]
        else Decision(c.step, False, _reasons_to_go(c, policy))
        for c in newest_first
    ]
    return decisions[::-1]


def rank_best(checkpoints: Iterable[Retainable], best: KeepBest | None) -> list[int]:
    """Steps of all checkpoints that have the metric, best first; equal values newest first."""
    if best is None:
        return []
    sign = 1 if best.mode == "min" else -1
    scored = [(sign * value, -c.step) for c in checkpoints if (value := _score(c, best.metric)) is not None]
    return [-step for _, step in sorted(scored)]


def _score(checkpoint: Retainable, metric: str) -> float | None:
    value = checkpoint.metrics.get(metric)
    return value if value is not None and math.isfinite(value) else None


def _reasons_to_keep(
    place: int, c: Retainable, ranked: Sequence[int], policy: CheckpointsConfig, in_use: int | None
) -> tuple[str, ...]:
    reasons = []
    if place == 0:
        reasons.append("the newest")
    elif place < policy.keep_last:
        reasons.append(f"among the last {policy.keep_last}")
    if policy.keep_best and c.step in ranked[: policy.keep_best.n]:
        best = policy.keep_best
        which = "the best" if c.step == ranked[0] else f"among the best {best.n}"
        reasons.append(f"{which} by {best.metric} ({_score(c, best.metric):.6g})")
    if policy.keep_every and c.step % policy.keep_every == 0:
        reasons.append(f"a multiple of {policy.keep_every} steps")
    if c.pinned:
        reasons.append("pinned")
    if c.step == in_use:
        reasons.append("in use")
    return tuple(reasons)


def _limit(
    newest_first: Sequence[Retainable],
    keep: Mapping[int, tuple[str, ...]],
    ranked: Sequence[int],
    limit: int,
    in_use: int | None,
) -> dict[int, tuple[str, ...]]:
    """Keep `limit` in all: first what must stay, then what a rule names, then the newest of the rest."""
    must = {newest_first[0].step, in_use, *ranked[:1]} if newest_first else set()
    must |= {c.step for c in newest_first if c.pinned}
    order = sorted(newest_first, key=lambda c: (c.step not in must, not keep[c.step], -c.step))
    allowed = {c.step for i, c in enumerate(order) if i < limit or c.step in must}
    within = (f"within save_total_limit = {limit}",)
    return {step: (reasons or within) if step in allowed else () for step, reasons in keep.items()}


def _reasons_to_go(c: Retainable, policy: CheckpointsConfig) -> tuple[str, ...]:
    """Say of every rule why it does not hold this checkpoint."""
    if policy.save_total_limit is not None:
        return (f"over save_total_limit = {policy.save_total_limit}",)
    reasons = [f"not among the last {policy.keep_last}"]
    if best := policy.keep_best:
        score = _score(c, best.metric)
        if score is None:
            reasons.append(f"no finite {best.metric}")
        else:
            reasons.append(f"not among the best {best.n} by {best.metric} ({score:.6g})")
    if policy.keep_every:
        reasons.append(f"not a multiple of {policy.keep_every} steps")
    return tuple(reasons)
