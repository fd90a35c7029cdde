"""Forecast the epochs of a run: their figures, what simpler strategies and fewer GPUs would make of them, and advice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from reelworks.core import blocks, results, units
from reelworks.core.errors import UserError
from reelworks.core.gpus import Gpu
from reelworks.data.buckets.assign import Reason
from reelworks.data.loader.left_out import by_reason
from reelworks.data.loader.position import DataPosition, next_epoch
from reelworks.data.schedule.plan import PlanSpec, plan_epoch
from reelworks.models.sequence import sequence_limits
from reelworks.training.memory import recomputation
from reelworks.training.plan import epoch_stats, plan_fixes, plan_report, strategies
from reelworks.training.plan.epoch_stats import BucketShare, Course, DatasetShare, Figures, figures
from reelworks.training.plan.plan_fixes import ProposedChange, RanksFigures
from reelworks.training.plan.plan_report import PlanNumbers, PlanSummary
from reelworks.training.plan.strategies import StrategyFigures
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.recipe.recipe import Recipe

FILES_NAMED = 20
_WORLDS = (8, 64, 512, 4096)


@dataclass(frozen=True)
class EpochFigures:
    """Figures of an epoch."""

    epoch: int
    figures: Figures = field(metadata=results.INLINED)


@dataclass(frozen=True)
class UnseenClips:
    """Clips that no epoch trains for one reason, with the first of their paths."""

    clips: int
    files: list[str]


@dataclass(frozen=True)
class NeverSeen:
    """Clips that no epoch trains, those held out left out."""

    clips: int
    by_reason: dict[str, UnseenClips]


@dataclass(frozen=True)
class LookAhead:
    """Several epochs, and the course of the first one."""

    epochs: list[EpochFigures]
    sum: Figures
    shares: list[BucketShare]
    datasets: list[DatasetShare]
    course: Course
    never_seen: NeverSeen


@dataclass(frozen=True)
class Advice:
    """Changes that reduce the waste of a plan.

    Attributes:
        proposals: None if imbalance and padding are not above `plan_fixes.WASTE_ALLOWED`.
        fewer_ranks: A number of GPUs at which the waste is allowed, if no proposal suffices; else None.
    """

    proposals: list[ProposedChange] | None
    fewer_ranks: RanksFigures | None


@dataclass(frozen=True)
class StepForecast:
    """Forecast of a run without stages on GPUs of a kind.

    Attributes:
        gpu: Its name.
        seconds_per_step: Mean time of the steps, by `cost.measured`, else estimated; without reading and encoding.
        steps: Those of the run.
        is_measured: Whether the time is a measured one.
        memory_bytes: Estimated memory of a GPU.
    """

    gpu: str
    seconds_per_step: float
    steps: int
    is_measured: bool
    memory_bytes: int


@dataclass(frozen=True)
class PlanForecast(PlanSummary):
    """The first epoch of a run, several epochs, and advice.

    Attributes:
        smaller_worlds: Figures of the first epoch on fewer GPUs.
        strategies: The first epoch beside those of simpler strategies; empty for a single rank.
        learning_rate_steps: Steps over which the learning rate falls, if they are those of all epochs; else None.
        on_gpu: Time and memory on the GPU that was named, if one was.
    """

    ahead: LookAhead = field(metadata=results.INLINED)
    smaller_worlds: list[RanksFigures]
    strategies: list[StrategyFigures]
    loss_reduction: str
    learning_rate_steps: int | None
    advice: Advice = field(metadata=results.INLINED)
    on_gpu: StepForecast | None = None


@dataclass(frozen=True)
class PlanOutline(PlanNumbers):
    """The part of a forecast of one epoch that takes a moment to compute."""

    sum: Figures
    shares: list[BucketShare]


def look_ahead(data: RecipeData, spec: PlanSpec, *, world: int, epochs: range) -> LookAhead:
    """Plan some epochs, at least one, one at a time; the first has a step."""
    dataset = epoch_stats.dataset_of_rows(data)
    by_bucket = np.zeros((4, len(data.table.buckets)))
    by_dataset = np.zeros((3, len(data.recipe.dataset)))
    seen = np.zeros(len(data.rows), dtype=np.bool_)
    each: list[Figures] = []
    for epoch in epoch_stats.one_by_one(epochs):
        plan = data.plan(spec, epoch)
        row = data.rows_at(plan.ordinal)
        each.append(figures(plan, spec, data.table.tokens(), world))
        by_bucket += epoch_stats.of_buckets(data, plan, spec)
        by_dataset += epoch_stats.of_datasets(data, plan, spec, blocks.taken(dataset, row))
        seen |= blocks.mask(row, len(seen))
        if epoch == epochs[0]:
            groups = epoch_stats.groups(data, by_bucket)
            course = epoch_stats.course(plan, groups)
    trainable_clips = blocks.counts(dataset[_trainable(data, epochs[0])], by_dataset.shape[1])
    return LookAhead(
        epochs=list(map(EpochFigures, epochs, each)),
        sum=sum(each, Figures()),
        shares=epoch_stats.bucket_shares(data, by_bucket, groups),
        datasets=epoch_stats.dataset_shares(data, by_dataset, trainable_clips),
        course=course,
        never_seen=_never_seen(data, seen, epochs[0]),
    )


def _on_ranks(data: RecipeData, numbers: Iterable[int], epochs: range) -> Iterator[RanksFigures]:
    """Yield the figures of some epochs on other numbers of ranks, as far as the recipe allows so many."""
    for ranks in numbers:
        try:
            spec = plan_spec(data, ranks)
        except UserError:  # the recipe's same_bucket_run does not allow this number
            continue
        one_by_one = epoch_stats.one_by_one(epochs)
        plans = ((plan_epoch(data.narrow_entries(epoch), spec, epoch), spec) for epoch in one_by_one)
        total = sum((figures(*each, data.table.tokens(), ranks) for each in plans), Figures())
        yield RanksFigures(ranks * data.recipe.parallel.group_size, total)


def _trainable(data: RecipeData, epoch: int) -> NDArray[np.bool_]:
    """Return which rows any epoch can draw."""
    assignment, row = data.assignment(epoch)
    drawn = np.isin(np.arange(len(Reason)), (Reason.NONE, Reason.NOT_DRAWN, Reason.DUPLICATE_TURN))
    return blocks.mask(row[blocks.taken(drawn, assignment.reason)], len(data.rows))


def _never_seen(data: RecipeData, seen: NDArray[np.bool_], epoch: int) -> NeverSeen:
    """Return the clips that no epoch trains, by why an epoch leaves them out, with the first paths; held-out clips are left out."""
    left_out = [one for one in by_reason(*data.assignment(epoch)) if one.reason != Reason.HELD_OUT]
    lost = {one.reason.label: one.row[~seen[one.row]] for one in left_out}
    clips = {
        label: UnseenClips(len(row), sorted(data.rows.labels(row[:FILES_NAMED])))
        for label, row in lost.items()
        if len(row)
    }
    return NeverSeen(sum(one.clips for one in clips.values()), clips)


_MOST_MICRO_BATCHES = 1_000_000  # per step: the plan has an element for each of a step


def step_shape(recipe: Recipe, world: int, begun: int | None = None) -> tuple[int, int]:
    """Return the micro-batches per step and the `same_bucket_run` of a run on `world` ranks that began with `begun`, or as many."""
    train, begun = recipe.train, begun or world
    steps = train.micro_batches_per_step or begun * train.gradient_accumulation_steps
    # So that ranks that work at the same time have shapes of one bucket.
    width = train.same_bucket_run or (steps if steps % begun else begun)
    if steps < world:
        raise UserError(
            f"a step has {units.plural(steps, 'micro-batch')}, so some of {world} ranks would have nothing to do",
            code="too-many-ranks",
            field="train.micro_batches_per_step",
            value=steps,
            remedy=f"use at most {units.plural(steps, 'rank')}, or raise it (the rest of the epoch is then planned anew)",
        )
    if steps > _MOST_MICRO_BATCHES:
        raise UserError(
            f"a step can have at most {_MOST_MICRO_BATCHES} micro-batches",
            code="unknown-micro-batch-count",
            field="train.micro_batches_per_step",
            value=steps,
            remedy="lower it; if the recipe does not set it, it is GPUs × train.gradient_accumulation_steps",
        )
    if steps % width:
        raise UserError(
            f"same_bucket_run must divide micro_batches_per_step, which is {steps}",
            code="run-length-must-divide",
            field="train.same_bucket_run",
            value=width,
            remedy=f"set train.same_bucket_run to a divisor of {steps}",
        )
    return steps, width


def forecast(recipe: Recipe, world: int, epochs: int = 1, data: RecipeData | None = None) -> PlanForecast:
    """Summarise the first epoch of a run on `world` GPUs, and look so many epochs ahead; the catalog must exist.

    `data` is the recipe's, where it is open already.

    Raises:
        UserError: GPUs cannot be divided into sequence groups, or these cannot share the tokens of a bucket.
    """
    data = settled(RecipeData.open(recipe), world) if data is None else data
    ranks, spec, first = begun(data, world)
    of_epochs = range(first.epoch, first.epoch + epochs)
    with ThreadPoolExecutor(1) as thread:  # numpy computes without Python's lock
        further = thread.submit(look_ahead, data, spec, world=ranks, epochs=of_epochs)
        summary = plan_report.summarise(data, spec, first.plan, world=ranks, epoch=first.epoch, given=recipe)
        ahead = further.result()
    train = recipe.train
    return PlanForecast(
        **vars(summary) | {"world": world},
        ahead=ahead,
        smaller_worlds=list(_on_ranks(data, (number for number in _WORLDS if number < ranks), of_epochs[:1])),
        strategies=strategies.compare(data, spec, first, ranks, recipe.buckets.tuned) if ranks > 1 else [],
        loss_reduction=train.loss_reduction,
        learning_rate_steps=(train.max_epochs or 0) * first.plan.num_steps if train.falls_over_epochs else None,
        advice=_advice(data, spec, ahead.sum, ranks, of_epochs),
    )


def begun(data: RecipeData, world: int) -> tuple[int, PlanSpec, DataPosition]:
    """Return the data ranks of a run on `world` GPUs, its plans' settings, and the first epoch that has a step, as training begins."""
    ranks = data.recipe.parallel.data_ranks(world)
    sequence_limits.require_buckets(data.recipe.model, data.table)
    spec = plan_spec(data, ranks)
    return ranks, spec, next_epoch(data, spec, None, first=data.stage.epoch)[0]


def settled(data: RecipeData, world: int = 1, gpu: Gpu | None = None) -> RecipeData:
    """Return the dataset of a recipe with the recomputation of its entries, for GPUs of a kind, or like that of this machine."""
    return recomputation.settle(data, recomputation.cards_for(data.recipe, world, gpu))


def outline(data: RecipeData, world: int) -> PlanOutline:
    """Return the part of `forecast` that takes a moment: the first epoch's numbers, without names of clips."""
    ranks, spec, first = begun(data, world)
    plan, left_out = first.plan, by_reason(*data.assignment(first.epoch))
    by_bucket = epoch_stats.of_buckets(data, plan, spec)
    return PlanOutline(
        **vars(plan_report.numbers(data, spec, plan, left_out, ranks)) | {"world": world},
        sum=figures(plan, spec, data.table.tokens(), ranks),
        shares=epoch_stats.bucket_shares(data, by_bucket, epoch_stats.groups(data, by_bucket)),
    )


def advice(data: RecipeData, world: int) -> Advice:
    """Return the advice of a forecast of one epoch, for a dataset that is open."""
    ranks, spec, first = begun(data, world)
    total = figures(first.plan, spec, data.table.tokens(), ranks)
    return _advice(data, spec, total, ranks, range(first.epoch, first.epoch + 1))


def _advice(data: RecipeData, spec: PlanSpec, total: Figures, ranks: int, epochs: range) -> Advice:
    if not plan_fixes.too_much(total):
        return Advice(None, None)
    proposals = plan_fixes.proposals(data, spec, total, world=ranks, epochs=epochs)
    if any(proposal.suffices for proposal in proposals):
        return Advice(proposals, None)
    fewer = _on_ranks(data, (ranks >> n for n in range(1, ranks.bit_length())), epochs)
    return Advice(proposals, next((one for one in fewer if not plan_fixes.too_much(one.figures)), None))


def plan_spec(data: RecipeData, world: int = 1, begun: int | None = None) -> PlanSpec:
    """Return the settings of the plans of a run, by `step_shape`; ranks that share a clip count as one."""
    return data.plan_spec(*step_shape(data.recipe, world, begun))
