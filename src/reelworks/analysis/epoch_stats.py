"""Statistics of plans that add up over epochs, in all and by bucket and dataset."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelworks.recipe.dataset import RecipeData
from reelworks.schedule import cost, ranks
from reelworks.schedule.cost import LossReduction
from reelworks.schedule.plan import EpochPlan, PlanSpec

Json = dict[str, Any]
I64 = NDArray[np.int64]
F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Figures:
    """Sums over one or more epochs.

    Attributes:
        steps: Optimizer steps.
        clips: Showings that count, copies that pad left out.
        repeated: Those among them that fill micro-batches with clips shown before.
        tokens: What the model sees of them.
        micro_batches: All.
        incomplete: Micro-batches with fewer clips than the batch size.
        places: Clips and copies that pad.
        useful_us: What the clips cost a mean rank, copies that pad left out, in microseconds.
        busy_us: Planned work of a mean rank.
        spent_us: Planned time of every rank, waiting included.
    """

    steps: int = 0
    clips: int = 0
    repeated: int = 0
    tokens: int = 0
    micro_batches: int = 0
    incomplete: int = 0
    places: int = 0
    useful_us: float = 0.0
    busy_us: float = 0.0
    spent_us: float = 0.0

    def __add__(self, other: Figures) -> Figures:
        return Figures(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    @property
    def imbalance(self) -> float:
        """Share of time in which ranks wait for the slowest."""
        return 1 - self.busy_us / self.spent_us if self.spent_us else 0.0

    @property
    def padding(self) -> float:
        """Share of places that carry weight 0."""
        return 1 - self.clips / self.places if self.places else 0.0

    @property
    def waste(self) -> float:
        """Share of time that trains nothing: waiting, and copies that pad."""
        return 1 - self.useful_us / self.spent_us if self.spent_us else 0.0

    def to_json(self) -> Json:
        """Counts and shares."""
        return {
            "steps": self.steps,
            "clips": self.clips,
            "repeated": self.repeated,
            "tokens": self.tokens,
            "micro_batches": self.micro_batches,
            "incomplete": self.incomplete,
            "imbalance": self.imbalance,
            "padding": self.padding,
            "waste": self.waste,
        }


def figures(plan: EpochPlan, spec: PlanSpec, tokens: I64, world: int) -> Figures:
    """Figures of one epoch.

    Args:
        plan: The epoch's plan.
        spec: What shaped it.
        tokens: Per bucket, of one clip.
        world: Ranks.
    """
    bucket, clips = micro_batches(plan)
    costs = np.array(spec.costs_us, dtype=np.int64)
    busy = float(plan.costs_us(spec).sum()) / world
    return Figures(
        steps=plan.steps,
        clips=int(clips.sum()),
        repeated=plan.repeated,
        tokens=int((clips * tokens[bucket]).sum()),
        micro_batches=len(bucket),
        incomplete=int((plan.own_clips() < np.array(spec.batch_sizes, dtype=np.int64)[bucket]).sum()),
        places=len(plan.uid),
        useful_us=float((clips * costs[bucket]).sum()) / world,
        busy_us=busy,
        spent_us=busy / (1 - ranks.waste(plan, spec, world)),
    )


def micro_batches(plan: EpochPlan) -> tuple[I64, I64]:
    """Bucket of every micro-batch, and how many of its places count."""
    return plan.bucket[plan.offsets[:-1]].astype(np.int64), plan.counted(plan.real)


def gradient_weight(plan: EpochPlan, tokens: I64, loss_reduction: LossReduction) -> F64:
    """Return each bucket's share of an epoch's gradients, in steps: the sum is the number of steps.

    Every step counts alike, and within a step its micro-batches do by the weight that `train.loss_reduction`
    gives their clips.

    Args:
        plan: The epoch's plan.
        tokens: Per bucket, of one clip.
        loss_reduction: What counts alike.
    """
    bucket, clips = micro_batches(plan)
    weight = clips * cost.loss_weight(loss_reduction, tokens[bucket], clips)
    of_row = np.append(weight, 0.0)[plan.rows].sum(axis=1)
    there = plan.rows >= 0
    share = weight[plan.rows[there]] / np.repeat(of_row, there.sum(axis=1))
    summed: F64 = np.bincount(bucket[plan.rows[there]], share, minlength=len(tokens)).astype(np.float64)
    return summed


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
        [count, count * tokens, time, gradient_weight(plan, tokens, data.recipe.train.loss_reduction)]
    )


def of_datasets(data: RecipeData, plan: EpochPlan, spec: PlanSpec, dataset: I64) -> F64:
    """Sum clips, tokens and time by dataset, `[3, datasets]`; `dataset` is that of every place."""
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
    """Name each bucket for plots: by itself, or by its entry if there are too many to tell apart.

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
    """Count the micro-batches of each group over an epoch, in at most `BINS` stretches of steps."""
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
