"""Several epochs ahead: their figures, shares of buckets and datasets, and clips that none of them sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelworks.buckets.assign import Reason
from reelworks.core.errors import UserError
from reelworks.prepare import shares
from reelworks.prepare.data import RecipeData
from reelworks.prepare.figures import Figures, figures
from reelworks.schedule import plan as planning
from reelworks.schedule.plan import PlanSpec

Json = dict[str, Any]
FILES_NAMED = 20
_WORLDS = (8, 64, 512, 4096)


def look_ahead(data: RecipeData, spec: PlanSpec, *, world: int, epochs: int) -> tuple[Json, Figures]:
    """Plan epochs from the first on, one at a time.

    Args:
        data: The recipe's data.
        spec: What shapes the plans.
        world: Ranks for which imbalance is computed.
        epochs: How many, at least one.

    Returns:
        `epochs`, `sum`, `shares`, `datasets`, `course` (of the first epoch) and `never_seen` as JSON; and the sum.
    """
    dataset = shares.dataset_of_rows(data)
    by_bucket = np.zeros((4, len(data.table.buckets)))
    by_dataset = np.zeros((3, len(data.recipe.dataset)))
    seen = np.zeros(len(data.rows), dtype=np.bool_)
    each: list[Figures] = []
    for epoch in range(epochs):
        plan = data.plan(spec, epoch)
        row = data.rows_at(plan.ordinal)
        each.append(figures(plan, spec, data.table.tokens(), world))
        by_bucket += shares.of_buckets(data, plan, spec)
        by_dataset += shares.of_datasets(data, plan, spec, dataset[row])
        seen[row] = True
        if epoch == 0:
            groups = shares.groups(data, by_bucket)
            course = shares.course(plan, groups)
    total = sum(each, Figures())
    reason, trainable = _reasons(data)
    told = {
        "epochs": [{"epoch": epoch} | one.to_json() for epoch, one in enumerate(each)],
        "sum": total.to_json(),
        "shares": shares.buckets_told(data, by_bucket, groups),
        "datasets": shares.datasets_told(
            data, by_dataset, np.bincount(dataset[trainable], minlength=by_dataset.shape[1])
        ),
        "course": course,
        "never_seen": _never_seen(data, seen, reason),
    }
    return told, total


def smaller_worlds(data: RecipeData, spec_for: Callable[[int], PlanSpec], world: int) -> list[Json]:
    """The first epoch of runs that 8, 64, ... ranks begin, fewer than `world`, where the recipe suits so many."""
    worlds = [ranks for ranks in _WORLDS if ranks < world]
    if not worlds:
        return []
    entries = data.entries(0)
    told = []
    for ranks in worlds:
        try:
            spec = spec_for(ranks)
        except UserError:  # the recipe's slot width
            continue
        plan = planning.plan(entries, spec, 0)
        told.append({"world": ranks} | figures(plan, spec, data.table.tokens(), ranks).to_json())
    return told


def _reasons(data: RecipeData) -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
    """Why the first epoch leaves out each row, and which rows training can draw at all."""
    assignment, row = data.assignment(0)
    reason, trainable = np.zeros(len(data.rows), dtype=np.int8), np.zeros(len(data.rows), dtype=np.bool_)
    reason[row] = assignment.reason
    trainable[row[np.isin(assignment.reason, (Reason.NONE, Reason.NOT_DRAWN))]] = True
    return reason, trainable


def _never_seen(data: RecipeData, seen: NDArray[np.bool_], reason: NDArray[np.int8]) -> Json:
    """Clips that no epoch trains, by reason, the first by name; held-out ones are not among them."""
    lost = ~seen & (reason != Reason.HELD_OUT)
    by_reason = {}
    for kind in Reason:
        where = np.flatnonzero(lost & (reason == kind))
        if len(where):
            first = where[:FILES_NAMED].tolist()
            paths = sorted(f"{data.rows.dataset[i].as_py()}/{data.rows.path[i].as_py()}" for i in first)
            by_reason[kind.label] = {"clips": len(where), "files": paths}
    return {"clips": int(lost.sum()), "by_reason": by_reason}
