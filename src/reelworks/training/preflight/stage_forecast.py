"""Forecast the stages of a run: steps, clips, time, memory and disk of each; and compare those of two recipes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelworks.core import gpus
from reelworks.core.gpus import Gpu
from reelworks.data.buckets.table import Bucket, BucketTable
from reelworks.data.checkpoint import disk_space
from reelworks.data.loader.position import next_epoch
from reelworks.data.schedule import cost
from reelworks.data.schedule.cursor import StageStart
from reelworks.data.schedule.plan import PlanSpec
from reelworks.training.loop.config import TrainConfig
from reelworks.training.memory import recomputation
from reelworks.training.memory.memory import Estimate, NetworkSizes
from reelworks.training.plan import plan_forecast
from reelworks.training.plan.plan_comparison import (
    ChangedKey,
    ComparedNumber,
    changed_keys,
    clips_side_by_side,
    side_by_side,
)
from reelworks.training.plan.plan_forecast import PlanForecast, StepForecast
from reelworks.training.recipe import origin, recipe_file, stages
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.recipe.recipe import Recipe
from reelworks.training.step import progress

_CLIPS, _EPOCHS = 1_000_000, 100  # planned for a stage, a second or two; later epochs count as the last of these


@dataclass(frozen=True)
class StageForecast:
    """Forecast of one stage of a run.

    Attributes:
        ends: When it ends, in words.
        first_step: Steps of the run before it.
        epochs: Passes over its data, the last of which it may leave.
        clips: Clips that it trains, each use as one.
        tokens: Latent tokens that it trains, those of clips that fill micro-batches again included.
        is_exact: Whether all its epochs were planned; of a long stage, those that were not count as the last one that was.
        seconds: Time of its steps, by `cost.measured`, else estimated from arithmetic; without reading and encoding.
        is_measured: Whether the time is a measured one.
        memory_bytes: Estimated memory of a GPU.
        plan: Forecast of its first epoch.
    """

    name: str
    ends: str
    first_step: int
    steps: int
    epochs: float
    clips: int
    tokens: int
    is_exact: bool
    seconds: float
    is_measured: bool
    memory_bytes: int
    plan: PlanForecast


@dataclass(frozen=True)
class RunForecast:
    """Forecast of a run with all its stages.

    Attributes:
        memory_bytes: Memory of a GPU in the stage that takes most.
        checkpoint_bytes: Size of the largest checkpoint.
        disk_bytes: The most that checkpoints take at a time.
        gpu: The GPU that times are estimated for.
    """

    stages: list[StageForecast]
    gpu: str
    steps: int
    clips: int
    tokens: int
    seconds: float
    memory_bytes: int
    checkpoint_bytes: int
    disk_bytes: int


def of_gpu(data: RecipeData, plan: PlanForecast, gpu: Gpu) -> StepForecast:
    """Forecast time and memory of a recipe without stages, by its data and their plan for such GPUs."""
    extent, _, (seconds, is_measured, memory_bytes) = _forecast(data, plan, data.recipe.train, StageStart(), gpu)
    return StepForecast(gpu.name, seconds / max(extent.steps, 1), extent.steps, is_measured, memory_bytes)


def forecast(
    recipe: Recipe, scan: Callable[[Recipe], object], world: int, epochs: int = 1, gpu: Gpu | None = None
) -> RunForecast:
    """Forecast all stages of a recipe on `world` GPUs of a kind; `scan` brings the catalog up to date for each."""
    here = gpu or gpus.here()
    found: list[StageForecast] = []
    checkpoint_bytes, saved = [], set[int]()
    start = StageStart()
    for index, stage in enumerate(recipe.stage):
        start = replace(start, name=stage.name)
        with stages.naming(stage):
            one = recipe_file.of_stage(recipe, index)
            scan(one)
            data = plan_forecast.settled(RecipeData.open(one), world, gpu)
            data.stage = start
            plan = plan_forecast.forecast(one, world, epochs, data)
            train = recipe_file.of_stage(recipe, index, start).train
            extent, sizes, told = _forecast(data, plan, train, start, here)
        found.append(
            StageForecast(
                stage.name,
                stage.end_text,
                start.step,
                extent.steps,
                extent.epochs,
                extent.end.clips - start.clips,
                int(extent.clips @ data.table.tokens()),
                extent.is_exact,
                *told,
                plan,
            )
        )
        copies = 1 if one.train.ema_decay is None else 2  # the weights, and their average
        checkpoint_bytes.append(4 * copies * sizes.trained_parameters + sizes.optimizer_bytes)
        epoch, every = round(extent.steps / extent.epochs) if extent.epochs else None, one.validation.every_steps
        saved.update(disk_space.saves(one.checkpoints, start.step, start.step + extent.steps, epoch, every))
        start = extent.end
    # On a disk that is large enough; the last checkpoint of each stage stays.
    largest = max(checkpoint_bytes)
    peak = disk_space.forecast(largest, recipe.checkpoints, sorted(saved), 1 << 62).peak_count + len(found) - 1
    return RunForecast(
        found,
        (here or gpus.USUAL).name,
        sum(stage.steps for stage in found),
        sum(stage.clips for stage in found),
        sum(stage.tokens for stage in found),
        sum(stage.seconds for stage in found),
        max(stage.memory_bytes for stage in found),
        largest,
        largest * peak,
    )


def start_of(recipe: Recipe, index: int, world: int) -> StageStart:
    """Return where a stage will begin on `world` GPUs; the data of those before it must have been scanned.

    Of a recipe without stages, that is the start of the run.
    """
    start = StageStart()
    for before in range(index):
        one = recipe_file.of_stage(recipe, before)
        data = plan_forecast.settled(RecipeData.open(one), world)
        spec = plan_forecast.plan_spec(data, one.parallel.data_ranks(world))
        start = _extent(data, spec, recipe_file.of_stage(recipe, before, start).train, start).end
    return replace(start, name=recipe.stage[index].name) if recipe.stage else start


@dataclass(frozen=True)
class _Extent:
    """Work of a stage, and where it ends.

    Attributes:
        clips: Repeats included, by bucket.
        micro_batches, places: By bucket; places are clips with copies.
        costs: Planned costs of the micro-batches, of all ranks.
    """

    epochs: float
    steps: int
    clips: NDArray[np.int64]
    micro_batches: NDArray[np.int64]
    places: NDArray[np.int64]
    costs: int
    end: StageStart  # of the next stage
    is_exact: bool

    def used(self, table: BucketTable) -> list[tuple[Bucket, int, float]]:
        """Return the buckets that are trained, with their micro-batches and the share of these that is full."""
        of_buckets = zip(table.buckets, self.micro_batches.tolist(), self.places.tolist(), strict=True)
        return [(b, n, places / (n * b.column_size)) for b, n, places in of_buckets if n]

    def seconds(self, table: BucketTable, of_network: Estimate, gpu: Gpu) -> float:
        """Return the estimated seconds of all its passes, one after the other."""
        return sum(n * of_network.seconds(b.name, gpu, share) / b.sequence_degree for b, n, share in self.used(table))


def on_one_gpu(data: RecipeData, of_network: Estimate, gpu: Gpu) -> tuple[int, float]:
    """Return the steps of a recipe on one GPU, of the first stage if it has some, and the estimated seconds of a step."""
    train = recipe_file.of_stage(data.recipe, 0, StageStart()).train if data.recipe.stage else data.recipe.train
    extent = _extent(data, plan_forecast.plan_spec(data, 1), train, StageStart())
    passes = extent.seconds(data.table, of_network, gpu) / max(extent.steps, 1)
    return extent.steps, passes + of_network.update_seconds(gpu)


def _extent(data: RecipeData, spec: PlanSpec, train: TrainConfig, start: StageStart) -> _Extent:
    """Plan a stage epoch by epoch, as training will; the ends of `train` count from the start of the run."""
    position, _ = next_epoch(data, spec, None, first=start.epoch)
    position = replace(position, global_step=start.step, clips_before=start.clips)
    epochs, planned, sums = 0.0, 0, np.zeros((4, len(data.table.buckets)))
    while True:
        plan, last = position.plan, progress.last_step(train, position)
        steps = min(last - position.global_step, plan.num_steps)
        clips, planned = int(plan.planned_before[steps]), planned + plan.planned
        used = plan.steps[:steps]
        used, buckets = used[used >= 0], len(data.table.buckets)
        bucket = plan.micro_bucket[used]
        each = (plan.real_clips, np.ones(len(plan.offsets) - 1), np.diff(plan.offsets), plan.costs_us(spec))
        of_epoch = np.stack([np.bincount(bucket, of_batch[used], buckets) for of_batch in each])
        counts = replace(position.counts, trained=clips)
        ended = replace(position, global_step=position.global_step + steps, counts=counts)
        epochs, sums = epochs + steps / plan.num_steps, sums + of_epoch
        more = (last - ended.global_step) / plan.num_steps
        if not more or planned >= _CLIPS or ended.epoch + 1 - start.epoch >= _EPOCHS:
            break
        position, _ = next_epoch(data, spec, ended)
    end = StageStart("", last, ended.epoch + 1 + math.ceil(more), ended.clips + round(more * clips))
    all_clips, micro_batches, places, costs = (sums + more * of_epoch).round().astype(np.int64)
    steps = last - start.step
    return _Extent(epochs + more, steps, all_clips, micro_batches, places, int(costs.sum()), end, is_exact=not more)


def _forecast(
    data: RecipeData, plan: PlanForecast, train: TrainConfig, start: StageStart, here: Gpu | None
) -> tuple[_Extent, NetworkSizes, tuple[float, bool, int]]:
    """Return what a stage trains, with which network; the time of its steps, whether that is a measured one, and a GPU's memory.

    The time is that of the plan's costs, if some were measured with this network on this GPU, or on a machine without (None);
    else that of the passes.
    """
    gpu, is_own = here or gpus.USUAL, origin.is_of(data.recipe, here)
    cards = recomputation.cards_for(data.recipe, plan.world, gpu)
    of_network = recomputation.estimate(data.recipe, data.table, cards)
    ranks = data.recipe.parallel.data_ranks(plan.world)
    spec = plan_forecast.plan_spec(data, ranks)
    extent = _extent(data, spec, train, start)
    measured_ms = data.measured_ms if is_own else {}
    unit = cost.unit_seconds([bucket.name for bucket in data.table.buckets], measured_ms, spec)
    if unit is not None:
        seconds, updates = unit * extent.costs, 0.0
    else:
        seconds = extent.seconds(data.table, of_network, gpu)
        updates = extent.steps * of_network.update_seconds(gpu)
    seconds = seconds / ranks / max(1 - plan.imbalance, 1e-9) + updates
    is_measured = all(bucket.name in measured_ms for bucket, *_ in extent.used(data.table))
    return extent, cards.measured.sizes(data.recipe), (seconds, is_measured, of_network.memory.total)


_OF_STAGE = ("steps", "epochs", "clips", "tokens", "seconds", "memory_bytes")
_OF_RUN = ("steps", "clips", "tokens", "seconds", "memory_bytes", "checkpoint_bytes", "disk_bytes")


@dataclass(frozen=True)
class StageComparison:
    """A stage of two recipes; a number that one of them lacks is 0.

    Attributes:
        figures: What it trains until its end.
        buckets: Clips of each bucket over the planned epochs.
        reasons: Clips that its first epoch leaves out, by reason.
    """

    name: str
    figures: list[ComparedNumber]
    buckets: list[ComparedNumber]
    reasons: list[ComparedNumber]


@dataclass(frozen=True)
class RunComparison:
    """Two recipes with stages and their forecasts, for the same number of GPUs.

    Attributes:
        keys: Keys with different values.
        figures: Sums over all stages, the most memory of one, and the disk of all.
        stages: The stages of both by their names, those of the first recipe first.
    """

    keys: list[ChangedKey]
    figures: list[ComparedNumber]
    stages: list[StageComparison]


def compare(before: tuple[Recipe, RunForecast], after: tuple[Recipe, RunForecast]) -> RunComparison:
    """Compare two recipes by their forecasts for the same numbers of ranks and epochs."""
    (recipe_a, a), (recipe_b, b) = before, after
    of_a, of_b = ({stage.name: stage for stage in run.stages} for run in (a, b))
    stages = []
    for name in {**of_a, **of_b}:
        both = of_a.get(name), of_b.get(name)
        figures = side_by_side(*(_numbers(one, _OF_STAGE) for one in both))
        plans = (None if one is None else one.plan for one in both)
        stages.append(StageComparison(name, figures, **clips_side_by_side(*plans)))
    return RunComparison(
        changed_keys(recipe_a, recipe_b), side_by_side(_numbers(a, _OF_RUN), _numbers(b, _OF_RUN)), stages
    )


def _numbers(forecast: StageForecast | RunForecast | None, names: tuple[str, ...]) -> dict[str, Any]:
    return {} if forecast is None else {name: getattr(forecast, name) for name in names}
