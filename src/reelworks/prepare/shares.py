"""What each bucket and each dataset has of clips, tokens, time and gradients, and of the steps in their order."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelworks.prepare.data import RecipeData
from reelworks.prepare.figures import gradient_weight, micro_batches
from reelworks.schedule.plan import EpochPlan, PlanSpec

Json = dict[str, Any]
I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
MEASURES = ("clips", "tokens", "time", "gradient")
NAMED, BINS = 8, 120
OTHERS = "others"


def of_buckets(data: RecipeData, plan: EpochPlan, spec: PlanSpec) -> F64:
    """Sums of an epoch by measure and bucket, `[4, buckets]`; those of several epochs add up.

    Time is the cost of the micro-batches, copies that pad included.
    """
    tokens = data.table.tokens()
    bucket, clips = micro_batches(plan)
    count = np.bincount(bucket, clips, minlength=len(tokens))
    time = np.bincount(bucket, plan.costs_us(spec), minlength=len(tokens))
    return np.stack(
        [count, count * tokens, time, gradient_weight(plan, tokens, data.recipe.train.loss_weight)]
    )


def of_datasets(data: RecipeData, plan: EpochPlan, spec: PlanSpec, dataset: I64) -> F64:
    """The same by dataset without the gradient, `[3, datasets]`; `dataset` is that of every place."""
    n = len(data.recipe.dataset)
    costs = np.array(spec.costs_us, dtype=np.int64)
    tokens = data.table.tokens()[plan.bucket] * plan.real
    per_place = (plan.real, tokens, costs[plan.bucket])
    return np.stack([np.bincount(dataset, each, minlength=n) for each in per_place])


def dataset_of_rows(data: RecipeData) -> I64:
    """Place of each row's dataset among the recipe's."""
    names = [one.dataset_name for one in data.recipe.dataset]
    place = {name: i for i, name in enumerate(names)}
    # The catalog may know datasets that the recipe does not name; none of these rows is theirs.
    of_word = np.array(
        [place.get(name, -1) for name in data.rows.dataset.dictionary.to_pylist()], dtype=np.int64
    )
    rows: I64 = of_word[data.rows.dataset.indices.to_numpy(zero_copy_only=False)]
    return rows


def groups(data: RecipeData, sums: F64) -> list[str]:
    """What plots call each bucket: itself, or where there are too many to tell apart its entry.

    The `NAMED` that take most time have a name, the rest are `OTHERS`.
    """
    table = data.table
    few = np.count_nonzero(sums[0]) <= NAMED
    names = [one.name if few else str(table.entries[one.entry]) for one in table.buckets]
    time: dict[str, float] = dict.fromkeys(names, 0.0)
    for name, spent in zip(names, sums[MEASURES.index("time")].tolist(), strict=True):
        time[name] += spent
    named = sorted(time, key=lambda name: -time[name])[:NAMED]
    return [name if name in named else OTHERS for name in names]


def buckets_told(data: RecipeData, sums: F64, groups: list[str]) -> list[Json]:
    """Shares of the buckets that have clips; each measure adds up to 1."""
    return [
        _told(data.table.buckets[i].name, sums, i) | {"group": groups[i]}
        for i in np.flatnonzero(sums[0]).tolist()
    ]


def datasets_told(data: RecipeData, sums: F64, trainable: I64) -> list[Json]:
    """Shares of the datasets, those without clips too; `trainable` counts the clips of each that can be drawn."""
    return [
        _told(one.dataset_name, sums, i)
        | {
            "trainable_clips": int(trainable[i]),
            "showings_per_clip": float(sums[0, i] / max(trainable[i], 1)),
        }
        for i, one in enumerate(data.recipe.dataset)
    ]


def _told(name: str, sums: F64, i: int) -> Json:
    shares = sums[:, i] / sums.sum(axis=1)
    told = {"name": name, "clips": int(sums[0, i])}
    return told | {f"share_of_{m}": float(share) for m, share in zip(MEASURES, shares, strict=False)}


def course(plan: EpochPlan, groups: list[str]) -> Json:
    """Where in an epoch the steps of each group lie: its micro-batches in at most `BINS` stretches of steps."""
    names = sorted(set(groups), key=lambda name: (name == OTHERS, groups.index(name)))
    line = np.array([names.index(name) for name in groups], dtype=np.int64)
    bins = min(BINS, plan.steps)
    step, column = np.nonzero(plan.rows >= 0)
    bucket, _ = micro_batches(plan)
    place = line[bucket[plan.rows[step, column]]] * bins + step * bins // plan.steps
    counts = np.bincount(place, minlength=len(names) * bins).reshape(len(names), bins)
    lines = [
        {"group": name, "micro_batches": n.tolist()} for name, n in zip(names, counts, strict=True) if n.any()
    ]
    return {"steps": plan.steps, "groups": lines}
