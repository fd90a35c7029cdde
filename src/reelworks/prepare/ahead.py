"""Several epochs ahead: their figures, the share of each bucket, and clips that none of them sees."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelworks.buckets.assign import Reason
from reelworks.prepare.data import RecipeData
from reelworks.prepare.figures import Figures, figures, gradient_weight, micro_batches
from reelworks.schedule.plan import PlanSpec

Json = dict[str, Any]
FILES_NAMED = 20


def look_ahead(data: RecipeData, spec: PlanSpec, *, world: int, epochs: int) -> tuple[Json, Figures]:
    """Plan epochs from the first on, one at a time.

    Args:
        data: The recipe's data.
        spec: What shapes the plans.
        world: Ranks for which imbalance is computed.
        epochs: How many, at least one.

    Returns:
        `epochs`, `sum`, `shares` and `never_seen` as JSON; and the sum.
    """
    tokens = data.table.tokens()
    clips, weight = np.zeros(len(tokens), dtype=np.int64), np.zeros(len(tokens))
    seen = np.zeros(len(data.rows), dtype=np.bool_)
    each: list[Figures] = []
    for epoch in range(epochs):
        plan = data.plan(spec, epoch)
        each.append(figures(plan, spec, tokens, world))
        bucket, trained = micro_batches(plan)
        clips += np.bincount(bucket, trained, minlength=len(tokens)).astype(np.int64)
        weight += gradient_weight(plan, tokens, data.recipe.train.loss_weight)
        seen[data.rows.find(plan.uid[plan.real])] = True
    total = sum(each, Figures())
    told = {
        "epochs": [{"epoch": epoch} | one.to_json() for epoch, one in enumerate(each)],
        "sum": total.to_json(),
        "shares": _shares(data, clips, weight),
        "never_seen": _never_seen(data, seen),
    }
    return told, total


def _shares(data: RecipeData, clips: NDArray[np.int64], weight: NDArray[np.float64]) -> list[Json]:
    """Shares of the buckets that have clips; each of the three adds up to 1."""
    tokens = clips * data.table.tokens()
    return [
        {
            "name": data.table.buckets[i].name,
            "clips": int(clips[i]),
            "share_of_clips": float(clips[i] / clips.sum()),
            "share_of_tokens": float(tokens[i] / tokens.sum()),
            "share_of_gradient": float(weight[i] / weight.sum()),
        }
        for i in np.flatnonzero(clips).tolist()
    ]


def _never_seen(data: RecipeData, seen: NDArray[np.bool_]) -> Json:
    """Clips that no epoch trains, by reason, the first by name; held-out ones are not among them."""
    assignment, row = data.assignment(0)
    reason = np.zeros(len(data.rows), dtype=np.int8)
    reason[row] = assignment.reason
    lost = ~seen & (reason != Reason.HELD_OUT)
    by_reason = {}
    for kind in Reason:
        where = np.flatnonzero(lost & (reason == kind)).tolist()
        if where:
            first = where[:FILES_NAMED]
            paths = sorted(f"{data.rows.dataset[i].as_py()}/{data.rows.path[i].as_py()}" for i in first)
            by_reason[kind.label] = {"clips": len(where), "files": paths}
    return {"clips": int(lost.sum()), "by_reason": by_reason}
