"""Compare two recipes with stages: keys, steps, clips, time and memory of each stage, and disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from reelworks.training.plan.plan_comparison import (
    ChangedKey,
    ComparedNumber,
    changed_keys,
    clips_left_out,
    clips_of_buckets,
    side_by_side,
)
from reelworks.training.preflight.stage_forecast import RunForecast, StageForecast
from reelworks.training.recipe.recipe import Recipe

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
    return RunComparison(
        changed_keys(recipe_a, recipe_b),
        side_by_side(_numbers(a, _OF_RUN), _numbers(b, _OF_RUN)),
        [_stage(name, of_a.get(name), of_b.get(name)) for name in {**of_a, **of_b}],
    )


def _stage(name: str, *both: StageForecast | None) -> StageComparison:
    return StageComparison(
        name,
        side_by_side(*(_numbers(one, _OF_STAGE) for one in both)),
        side_by_side(*({} if one is None else clips_of_buckets(one.plan) for one in both)),
        side_by_side(*({} if one is None else clips_left_out(one.plan) for one in both)),
    )


def _numbers(forecast: StageForecast | RunForecast | None, names: tuple[str, ...]) -> dict[str, Any]:
    return {} if forecast is None else {name: getattr(forecast, name) for name in names}
