"""Compare two plans: recipe keys, figures, clips by bucket and by reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reelworks.analysis.plan_forecast import PlanForecast
from reelworks.core import toml_none
from reelworks.recipe import diff
from reelworks.recipe.recipe import Recipe

COMPARED = ("steps", "clips", "tokens", "micro_batches", "incomplete", "imbalance", "padding")


@dataclass(frozen=True)
class ChangedKey:
    """A recipe key with its values in two recipes."""

    key: str
    a: Any
    b: Any


@dataclass(frozen=True)
class ComparedNumber:
    """A number of two plans."""

    name: str
    a: float
    b: float


@dataclass(frozen=True)
class PlanComparison:
    """Two recipes and their plans, for the same numbers of GPUs and epochs; a missing count is 0.

    Attributes:
        keys: Keys with different values.
        figures: Sums over all epochs.
        buckets: Clips of each bucket over all epochs.
        reasons: Clips that the first epoch leaves out, by reason.
    """

    world: int
    epochs: int
    keys: list[ChangedKey]
    figures: list[ComparedNumber]
    buckets: list[ComparedNumber]
    reasons: list[ComparedNumber]


def compare(before: tuple[Recipe, PlanForecast], after: tuple[Recipe, PlanForecast]) -> PlanComparison:
    """Compare two recipes by their forecasts for the same numbers of ranks and epochs."""
    (recipe_a, a), (recipe_b, b) = before, after
    changed = diff.changes(toml_none.to_toml(recipe_a), toml_none.to_toml(recipe_b))
    return PlanComparison(
        world=a.world,
        epochs=len(a.ahead.epochs),
        keys=[ChangedKey(change.key, change.before, change.after) for change in changed],
        figures=_side_by_side(*({name: getattr(f.ahead.sum, name) for name in COMPARED} for f in (a, b))),
        buckets=_side_by_side(*({share.name: share.clips for share in f.ahead.shares} for f in (a, b))),
        reasons=_side_by_side(*({name: one.clips for name, one in f.left_out.items()} for f in (a, b))),
    )


def _side_by_side(a: Mapping[str, float], b: Mapping[str, float]) -> list[ComparedNumber]:
    return [ComparedNumber(name, a.get(name, 0), b.get(name, 0)) for name in {**a, **b}]
