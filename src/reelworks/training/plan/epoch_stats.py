"""Additive statistics of epoch plans, in total and by bucket and dataset."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Container, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from reelworks.core import blocks, files, log
from reelworks.core.arrays import F64, I64, Integers
from reelworks.core.errors import UserError
from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.data.schedule import cost, cost_fit
from reelworks.data.schedule.cost import LossReduction
from reelworks.data.schedule.cost_fit import BatchTime, Timing
from reelworks.data.schedule.plan import EpochPlan, PlanSpec
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.recipe.origin import Origin


@dataclass(frozen=True)
class Figures:
    """Sums over one or more epochs.

    Attributes:
        clips: Showings of clips that count in the loss, padding left out.
        repeated: Repeats among `clips`, which fill micro-batches.
        incomplete: Micro-batches with fewer clips than the batch size.
        places: Showings of clips, padding included.
        useful_us: Mean planned time of a rank for `clips`, in microseconds.
        busy_us: Mean planned working time of a rank, padding included, in microseconds.
        spent_us: Planned time of every rank, waiting included, in microseconds.
    """

    JSON_KEYS: ClassVar = (
        *("steps", "clips", "repeated", "tokens", "micro_batches", "incomplete"),
        *("imbalance", "padding", "waste"),
    )

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
        """Share of places that have weight 0."""
        return 1 - self.clips / self.places if self.places else 0.0

    @property
    def waste(self) -> float:
        """Share of time that trains nothing: waiting and padding."""
        return 1 - self.useful_us / self.spent_us if self.spent_us else 0.0


def figures(plan: EpochPlan, spec: PlanSpec, tokens: I64, world: int) -> Figures:
    """Return the figures of one epoch on `world` ranks; `tokens` are those of a clip, by bucket."""
    bucket, clips = plan.micro_bucket, plan.real_clips
    sizes = np.array(spec.batch_sizes, dtype=np.int64)
    busy = float(plan.costs_us(spec).sum()) / world
    return Figures(
        steps=plan.num_steps,
        clips=int(clips.sum()),
        repeated=plan.repeated,
        tokens=int(blocks.sums(bucket, clips, len(tokens)).astype(np.int64) @ tokens),
        micro_batches=len(bucket),
        incomplete=int((plan.own_clips < blocks.taken(sizes, bucket)).sum()),
        places=len(plan.uid),
        useful_us=float(spec.costs(bucket, clips).sum()) / world,
        busy_us=busy,
        spent_us=busy / (1 - plan.waste(spec, world)),
    )


def gradient_weight(plan: EpochPlan, tokens: I64, loss_reduction: LossReduction) -> F64:
    """Return each bucket's share of an epoch's gradients, in steps: the sum is the number of steps.

    Every step has the same weight; within a step, micro-batches are weighted as `train.loss_reduction` says.
    `tokens` are those of a clip, by bucket.
    """
    bucket, clips = plan.micro_bucket, plan.real_clips
    weight = clips * cost.loss_weight(loss_reduction, tokens[bucket], clips)
    step_weight = np.append(weight, 0.0)[plan.steps].sum(axis=1)
    used = plan.steps >= 0
    share = weight[plan.steps[used]] / np.repeat(step_weight, used.sum(axis=1))
    return np.bincount(bucket[plan.steps[used]], share, minlength=len(tokens)).astype(np.float64)


MEASURES = ("clips", "tokens", "time", "gradient")
NAMED, BINS = 8, 120
OTHERS = "others"


def of_buckets(data: RecipeData, plan: EpochPlan, spec: PlanSpec) -> F64:
    """Return the sums of an epoch by measure and bucket, `[4, buckets]`; sums of several epochs add up.

    Time is the cost of the micro-batches, padding included.
    """
    tokens = data.table.tokens()
    bucket, clips = plan.micro_bucket, plan.real_clips
    count = np.bincount(bucket, clips, minlength=len(tokens))
    time = np.bincount(bucket, plan.costs_us(spec), minlength=len(tokens))
    return np.stack([count, count * tokens, time, gradient_weight(plan, tokens, data.recipe.train.loss_reduction)])


def of_datasets(data: RecipeData, plan: EpochPlan, spec: PlanSpec, dataset: Integers) -> F64:
    """Return clips, tokens and time by dataset, `[3, datasets]`; `dataset[i]` is the dataset of place `i` in the plan."""
    shape = len(data.recipe.dataset), len(data.table.buckets)
    pair = blocks.elementwise(
        lambda d, b: d.astype(np.int64) * shape[1] + b, dataset, plan.bucket, dtype=blocks.kind_of(shape[0] * shape[1])
    )
    places = blocks.counts(pair, shape[0] * shape[1]).reshape(shape)
    clips = blocks.sums(pair, plan.real, shape[0] * shape[1]).reshape(shape)
    time = np.bincount(plan.micro_bucket, plan.costs_us(spec), minlength=shape[1])
    return np.stack([clips.sum(axis=1), clips @ data.table.tokens(), places / np.maximum(places.sum(axis=0), 1) @ time])


def dataset_of_rows(data: RecipeData) -> Integers:
    """Return the index of each row's dataset in the recipe."""
    index = {dataset.dataset_name: i for i, dataset in enumerate(data.recipe.dataset)}
    return data.rows.per_dataset(index, default=-1, dtype=blocks.kind_of(len(index)))


def groups(data: RecipeData, sums: F64) -> list[str]:
    """Return a plot label for each bucket: its own name, or its entry's if there are too many buckets.

    The `NAMED` names that take most time are labels, the rest are `OTHERS`.
    """
    table = data.table
    few = np.count_nonzero(sums[0]) <= NAMED
    names = [bucket.name if few else str(table.entries[bucket.entry]) for bucket in table.buckets]
    time = Counter[str]()
    for name, spent in zip(names, sums[MEASURES.index("time")].tolist(), strict=True):
        time[name] += spent
    named = [name for name, _ in time.most_common(NAMED)]
    return [name if name in named else OTHERS for name in names]


@dataclass(frozen=True)
class DatasetShare:
    """Shares of a dataset, from 0 to 1, in the clips, tokens and time of epochs; time includes padding.

    Attributes:
        clips: Showings of its clips, padding left out.
        trainable_clips: Clips that any epoch can draw.
    """

    name: str
    clips: int
    share_of_clips: float
    share_of_tokens: float
    share_of_time: float
    trainable_clips: int
    showings_per_clip: float


@dataclass(frozen=True)
class BucketShare:
    """Shares of a bucket, from 0 to 1, in the clips, tokens, time and gradients of epochs, with its label in plots."""

    name: str
    clips: int
    share_of_clips: float
    share_of_tokens: float
    share_of_time: float
    share_of_gradient: float
    group: str


def bucket_shares(data: RecipeData, sums: F64, groups: list[str]) -> list[BucketShare]:
    """Return the shares of the buckets that have clips; each measure adds up to 1."""
    return [
        BucketShare(data.table.buckets[i].name, int(sums[0, i]), **_shares(sums, i), group=groups[i])
        for i in np.flatnonzero(sums[0]).tolist()
    ]


def dataset_shares(data: RecipeData, sums: F64, trainable: I64) -> list[DatasetShare]:
    """Return the shares of all datasets; `trainable` counts the clips of each that can be drawn."""
    showings = (sums[0] / np.maximum(trainable, 1)).tolist()
    return [
        DatasetShare(
            dataset.dataset_name,
            int(sums[0, i]),
            **_shares(sums, i),
            trainable_clips=int(trainable[i]),
            showings_per_clip=showings[i],
        )
        for i, dataset in enumerate(data.recipe.dataset)
    ]


def _shares(sums: F64, i: int) -> dict[str, float]:
    shares = (sums[:, i] / sums.sum(axis=1)).tolist()
    return {f"share_of_{measure}": share for measure, share in zip(MEASURES, shares, strict=False)}


@dataclass(frozen=True)
class CourseGroup:
    """Micro-batches of a group of buckets in each bin of an epoch's steps."""

    group: str
    micro_batches: list[int]


@dataclass(frozen=True)
class Course:
    """Order of the micro-batches in an epoch, from its first step to its last."""

    steps: int
    groups: list[CourseGroup]


def course(plan: EpochPlan, groups: list[str]) -> Course:
    """Return the micro-batches of each group over an epoch, in at most `BINS` bins of steps."""
    names = sorted(set(groups), key=lambda name: (name == OTHERS, groups.index(name)))
    line = np.array([names.index(name) for name in groups], dtype=np.int64)
    bins = min(BINS, plan.num_steps)
    step, column = np.nonzero(plan.steps >= 0)
    bucket = plan.micro_bucket
    place = line[bucket[plan.steps[step, column]]] * bins + step * bins // plan.num_steps
    counts = np.bincount(place, minlength=len(names) * bins).reshape(len(names), bins)
    return Course(
        plan.num_steps, [CourseGroup(name, n.tolist()) for name, n in zip(names, counts, strict=True) if n.any()]
    )


_WARM_UP_STEPS = 1  # caches, compilers and allocators warm up
_FEW_STEPS = 3  # of a size that are a measurement


def one_by_one(epochs: range) -> Iterator[int]:
    """Yield epochs that are planned one after the other, and say how far that is if it takes long."""
    now = epochs[0]
    with log.stage("planning epochs", lambda: f"epoch {now - epochs[0] + 1} of {len(epochs)}"):
        for now in epochs:
            yield now


def milliseconds(run: RunFolder, field: str, among: Container[str] | None = None) -> dict[tuple[str, int], list[float]]:
    """Return how long micro-batches of a bucket and a number of clips took, copies and repeats included.

    They are those of the steps that had no others, the first step after each start left out. Ranks work on a step's micro-batches
    side by side, and one that has none left waits; those of a sequence group share theirs. Waiting for clips is left out.

    Raises:
        UserError: There is no such step of the buckets `among` these, or of any if it is None.
    """
    run.info()
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    ranks = since_start = 0
    for event in events.stream(run.events_file, "start", "step"):
        if event["kind"] == "start":
            ranks, since_start = event["world_size"] // event.get("sequence_degree", 1), 0
            continue
        since_start += 1
        names, sizes = event["buckets"], event.get("batch_sizes", [])
        if since_start > _WARM_UP_STEPS and len(names) == len(sizes) == 1 and (among is None or names[0] in among):
            seconds = event["seconds"] - (event.get("data_wait_seconds") or 0.0)
            found[names[0], sizes[0]].append(1000 * seconds / -(-event["micro_batches"] // ranks))
    if not found:
        raise UserError(
            "the run has no step from which the cost of a bucket can be measured",
            code="no-measured-cost",
            field=field,
            value=str(run.path),
            remedy="train more steps; only steps with a single bucket count, and not the first step after a start",
        )
    return found


def measure_costs(run: RunFolder) -> dict[str, BatchTime]:
    """Return the time of micro-batches of each bucket: through the median at its most frequent size, by all its usual sizes."""
    of_buckets: dict[str, list[tuple[int, Timing]]] = defaultdict(list)
    for (bucket, size), ms in sorted(milliseconds(run, "RUN").items()):
        of_buckets[bucket].append((len(ms), Timing(1, size, statistics.median(ms))))
    found = {}
    for bucket, timings in of_buckets.items():
        _, usual = max(timings)
        # The first micro-batch of a size compiles or tunes kernels: one alone tells nothing of it.
        line = cost_fit.fit([timing for n, timing in timings if n >= _FEW_STEPS] or [usual]).of_clips(1)
        found[bucket] = line.through(usual.batch_size, usual.milliseconds)
    return found


def write_costs(path: Path, run: RunFolder, measured_ms: dict[str, BatchTime]) -> None:
    """Write the result of `measure_costs` of a run as the file that `cost.measured` of a recipe names."""
    values = {"origin": Origin.of_run(run), "costs_ms": measured_ms}
    files.write_for("--costs", path, (files.to_json(values, indent=2) + "\n").encode())
