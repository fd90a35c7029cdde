"""Retention as a pure function: which checkpoints stay, which are deleted, and why."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from reelworks.core import units
from reelworks.data.checkpoint import mixture
from reelworks.data.checkpoint.config import KeepBest, Retention

Reasons = tuple[str, ...]


@dataclass(frozen=True)
class CheckpointFacts:
    """Facts of a checkpoint that the policy reads."""

    step: int
    created: float  # time of the save, in seconds since 1970
    num_bytes: int  # size of the files, without the manifest
    pinned: bool  # which protects it from deletion
    metrics: dict[str, float]  # those of the manifest and those recorded since; NaN for values that were not finite
    stage: str = field(default="", kw_only=True)  # name of the recipe's stage; empty without stages
    # Digests of what the metrics are of, by metric.
    measured_on: Mapping[str, str] = field(default_factory=dict, kw_only=True)


@dataclass(frozen=True)
class PolicyTime:
    """Time, readers and disk space on which a plan depends besides the checkpoints and the policy."""

    now: float  # seconds since 1970
    in_use: Collection[int] = ()  # steps that are being read
    other_bytes: int = 0  # bytes of deleted, quarantined and damaged checkpoints in `checkpoints/`
    next_bytes: int = 0  # bytes of the next save, or of the one in progress
    free_bytes: int = 0  # free bytes of the file system, as if no save was in progress


@dataclass(frozen=True)
class Decision:
    """Decision about one checkpoint, with all reasons for it."""

    step: int
    keep: bool
    reasons: Reasons


def plan_retention(checkpoints: Iterable[CheckpointFacts], policy: Retention, moment: PolicyTime) -> list[Decision]:
    """Decide which checkpoints to keep; returns the decisions by ascending step.

    The newest, the best, pinned ones and those in use always stay, whatever the settings, so that every run can
    resume. A metric that is NaN, infinite or missing is never best; of equal values the newer one is better.
    Applying a plan and planning again keeps everything; a larger budget never keeps less.

    Args:
        checkpoints: Valid checkpoints only: a damaged one must not take the place of a good one.
    """
    case = _Case(sorted(checkpoints, key=lambda c: c.step, reverse=True), policy, moment)
    keep = {c.step: _reasons_to_keep(case, i, c) for i, c in enumerate(case.newest_first)}
    if policy.save_total_limit is not None:
        keep = _limit(case, keep, policy.save_total_limit)
    evicted = _evict(case, {step for step, reasons in keep.items() if reasons})
    decisions = []
    for c in reversed(case.newest_first):
        against = evicted.get(c.step) or (() if keep[c.step] else _reasons_to_delete(policy, c))
        decisions.append(Decision(c.step, not against, against or keep[c.step]))
    return decisions


def as_event(decisions: Iterable[Decision]) -> dict[str, list[dict[str, Any]]]:
    """Return decisions as the fields `kept` and `deleted` of an event."""
    told: dict[str, list[dict[str, Any]]] = {"kept": [], "deleted": []}
    for one in decisions:
        told["kept" if one.keep else "deleted"].append({"step": one.step, "reasons": list(one.reasons)})
    return told


def rank_best(checkpoints: Iterable[CheckpointFacts], best: KeepBest | None) -> list[int]:
    """Return the steps of all checkpoints that have the metric, best first; equal values newest first.

    Only those of the newest one's stage are ranked, and of these the ones that were measured on the same as the last that
    was: on other clips or sizes, the same metric is another one.
    """
    return next(iter(rank_series(checkpoints, best)), [])


def rank_series(checkpoints: Iterable[CheckpointFacts], best: KeepBest | None) -> list[list[int]]:
    """Return the steps of all checkpoints that `rank_best` ranks, and those measured on something else, newest first."""
    newest_first = sorted(checkpoints, key=lambda c: -c.step)
    ranked: dict[tuple[str, ...], list[tuple[float, int]]] = {}
    if best is None:
        return []
    for c in newest_first:
        if c.stage == newest_first[0].stage and (value := score(c, best.metric)) is not None:
            ranked.setdefault(series(c, best.metric), []).append((value if best.mode == "min" else -value, -c.step))
    return [[-step for _, step in sorted(values)] for values in ranked.values()]


def series(checkpoint: CheckpointFacts, metric: str) -> tuple[str, ...]:
    """Return a checkpoint's stage, and what the parts of a metric were measured on: only equal ones can be compared."""
    return checkpoint.stage, *(checkpoint.measured_on.get(name, "") for name in mixture.terms(metric))


def score(checkpoint: CheckpointFacts, metric: str) -> float | None:
    """Return a checkpoint's value of a metric or mixture; None if it is missing or not finite."""
    return mixture.value(checkpoint.metrics, metric)


def scored(checkpoint: CheckpointFacts, metric: str) -> str:
    """Return a checkpoint's value of a metric as text, with the parts of a mixture."""
    value, parts = score(checkpoint, metric), mixture.parts(checkpoint.metrics, metric)
    return f"{value:.6g}" + (f": {parts}" if parts else "")


@dataclass(frozen=True)
class _Case:
    newest_first: Sequence[CheckpointFacts]
    policy: Retention
    moment: PolicyTime

    @cached_property
    def series(self) -> list[list[int]]:
        return rank_series(self.newest_first, self.policy.keep_best)

    @property
    def ranked(self) -> list[int]:
        return next(iter(self.series), [])

    @cached_property
    def floor(self) -> set[int]:
        always = {c.step for i, c in enumerate(self.newest_first) if i == 0 or c.pinned}
        return always | {*self.ranked[:1], *self.moment.in_use}


def _reasons_to_keep(case: _Case, age_rank: int, c: CheckpointFacts) -> Reasons:
    policy, reasons = case.policy, []
    if age_rank == 0:
        reasons.append("the newest")
    elif policy.save_total_limit is None and age_rank < policy.keep_last:
        reasons.append(f"among the last {policy.keep_last}")
    if age_rank and case.newest_first[age_rank - 1].stage != c.stage:
        reasons.append(f"the last of stage {c.stage}")
    if (best := policy.keep_best) and c.step in case.ranked[: best.n]:
        which = "the best" if c.step == case.ranked[0] else f"among the best {best.n}"
        reasons.append(f"{which} by {best.metric} ({scored(c, best.metric)})")
    if best and any(c.step == former[0] for former in case.series[1:2]):
        reasons.append(f"the best of a former series by {best.metric} ({scored(c, best.metric)})")
    if policy.keep_every and c.step % policy.keep_every == 0:
        reasons.append(f"a multiple of {policy.keep_every} steps")
    if policy.keep_within_seconds and case.moment.now - c.created < policy.keep_within_seconds:
        reasons.append(f"younger than {policy.keep_within}")
    if c.pinned:
        reasons.append("pinned")
    if c.step in case.moment.in_use:
        reasons.append("in use")
    return tuple(reasons)


def _limit(case: _Case, keep: Mapping[int, Reasons], limit: int) -> dict[int, Reasons]:
    """Keep `limit` in all: first the floor, then those that a rule keeps, then the newest of the rest."""
    order = sorted(case.newest_first, key=lambda c: (c.step not in case.floor, not keep[c.step], -c.step))
    allowed = {c.step for i, c in enumerate(order) if i < limit or c.step in case.floor}
    within = (f"within save_total_limit = {limit}",)
    return {step: (reasons or within) if step in allowed else () for step, reasons in keep.items()}


def _evict(case: _Case, kept: Collection[int]) -> dict[int, Reasons]:
    """Evict kept checkpoints above the floor, oldest first, until the budgets hold or none is left."""
    over = _over_budget(case, kept)
    evicted: dict[int, Reasons] = {}
    for c in reversed(case.newest_first):
        over = {budget: missing for budget, missing in over.items() if missing > 0}
        if over and c.step in kept and c.step not in case.floor:
            evicted[c.step] = tuple(
                f"{budget} requires freeing {units.size(missing)}; this is the oldest that may be deleted"
                for budget, missing in over.items()
            )
            over = {budget: missing - c.num_bytes for budget, missing in over.items()}
    return evicted


def _over_budget(case: _Case, kept: Collection[int]) -> dict[str, int]:
    """Return by how many bytes each budget is exceeded once all but `kept` is deleted."""
    policy, moment = case.policy, case.moment
    sizes = {c.step: c.num_bytes for c in case.newest_first}
    stays = sum(size for step, size in sizes.items() if step in kept)
    over = {}
    if (limit := policy.max_disk_bytes) is not None:
        over[f"max_disk = {policy.max_disk}"] = stays + moment.other_bytes + moment.next_bytes - limit
    if (least := policy.min_free_bytes) is not None:
        freed = sum(sizes.values()) - stays
        over[f"min_free = {policy.min_free}"] = least - (moment.free_bytes + freed - moment.next_bytes)
    return over


def _reasons_to_delete(policy: Retention, c: CheckpointFacts) -> Reasons:
    if policy.save_total_limit is not None:
        return (f"over save_total_limit = {policy.save_total_limit}",)
    reasons = [f"not among the last {policy.keep_last}"]
    if best := policy.keep_best:
        lacks, rank = mixture.missing(c.metrics, best.metric), f"not among the best {best.n} by {best.metric}"
        reasons.append(f"no finite {', '.join(lacks)}" if lacks else f"{rank} ({scored(c, best.metric)})")
    if policy.keep_every:
        reasons.append(f"not a multiple of {policy.keep_every} steps")
    if policy.keep_within:
        reasons.append(f"older than {policy.keep_within}")
    return tuple(reasons)
