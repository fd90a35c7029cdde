"""Forecast the stages of a run one after the other: steps, clips, time, memory and disk of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reelworks.analysis import plan_forecast
from reelworks.analysis.epoch_stats import Figures
from reelworks.analysis.plan_forecast import PlanForecast
from reelworks.checkpoint import disk_space
from reelworks.recipe import recipe_file
from reelworks.recipe.dataset import RecipeData
from reelworks.recipe.recipe import Recipe
from reelworks.schedule.cursor import StageStart
from reelworks.train.config import TrainConfig
from reelworks.train.preflight import estimate
from reelworks.train.preflight.memory import Estimate


@dataclass(frozen=True)
class StageForecast:
    """Forecast of one stage of a run.

    Attributes:
        ends: When it ends, in words.
        first_step: Steps of the run before it.
        epochs: Passes over its data, the last of which it may leave.
        clips, tokens: Those that it trains.
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
    """

    stages: list[StageForecast]
    steps: int
    clips: int
    tokens: int
    seconds: float
    memory_bytes: int
    checkpoint_bytes: int
    disk_bytes: int


def forecast(recipe: Recipe, scan: Callable[[Recipe], object], world: int, epochs: int = 1) -> RunForecast:
    """Forecast all stages of a recipe on `world` GPUs; `scan` brings the catalog up to date for each."""
    found: list[StageForecast] = []
    checkpoint_bytes = []
    for index, stage in enumerate(recipe.stage):
        first = sum(earlier.steps for earlier in found)
        one = recipe_file.of_stage(recipe, index, StageStart(stage.name, first))
        scan(one)
        plan = plan_forecast.forecast(one, world, epochs)
        data = RecipeData.open(one)
        of_network = estimate.estimate(data.recipe, data.table)
        figures = plan.ahead.epochs[0].figures
        share = _epochs(one.train, first, figures)
        found.append(
            StageForecast(
                stage.name,
                stage.end_text,
                first,
                math.ceil(share * figures.steps),
                share,
                round(share * figures.clips),
                round(share * figures.tokens),
                share * _epoch_seconds(data, plan, of_network),
                bool(data.measured_ms),
                of_network.memory.total,
                plan,
            )
        )
        checkpoint_bytes.append(_checkpoint_bytes(one, of_network))
    largest = max(checkpoint_bytes)
    return RunForecast(
        found,
        sum(stage.steps for stage in found),
        sum(stage.clips for stage in found),
        sum(stage.tokens for stage in found),
        sum(stage.seconds for stage in found),
        max(stage.memory_bytes for stage in found),
        largest,
        _disk_bytes(recipe, largest, [stage.first_step + stage.steps for stage in found]),
    )


def _epochs(train: TrainConfig, first_step: int, of_epoch: Figures) -> float:
    """Return the passes over its data after which a stage ends, in whole steps."""
    ends: list[float] = [] if train.max_epochs is None else [train.max_epochs]
    if train.max_steps is not None:
        ends.append(max(train.max_steps - first_step, 0) / of_epoch.steps)
    if train.max_clips is not None:
        ends.append(math.ceil(train.max_clips * of_epoch.steps / (of_epoch.clips - of_epoch.repeated)) / of_epoch.steps)
    return min(ends)


def _epoch_seconds(data: RecipeData, plan: PlanForecast, of_network: Estimate) -> float:
    """Return the time of an epoch's steps; micro-batches that are not full count as full ones."""
    seconds = 0.0
    for bucket in plan.buckets:
        measured = data.measured_ms.get(bucket.name)
        each = of_network.seconds(bucket.name) if measured is None else measured * bucket.batch_size / 1000
        seconds += bucket.micro_batches * each / bucket.sequence_degree
    ranks = data.recipe.parallel.data_ranks(plan.world)
    return seconds / ranks / max(1 - plan.imbalance, 1e-9)


def _checkpoint_bytes(recipe: Recipe, of_network: Estimate) -> int:
    copies = 1 if recipe.train.ema_decay is None else 2  # the weights, and their average
    return 4 * copies * of_network.trained_parameters + of_network.memory.optimizer


def _disk_bytes(recipe: Recipe, checkpoint_bytes: int, last_steps: Sequence[int]) -> int:
    """Return the most that checkpoints take at a time on a disk that is large enough; the last of each stage stays."""
    policy = recipe.checkpoints
    saved = sorted({*disk_space.saves(policy, 0, last_steps[-1]), *last_steps})
    peak_count = disk_space.forecast(checkpoint_bytes, policy, saved, 1 << 62).peak_count
    return checkpoint_bytes * (peak_count + len(last_steps) - 1)
