"""Compare two plans: recipe keys, figures, clips by bucket and by reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reelworks.core import toml_none
from reelworks.training.plan.plan_forecast import PlanForecast
from reelworks.training.recipe import diff
from reelworks.training.recipe.recipe import Recipe

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
    return PlanComparison(
        world=a.world,
        epochs=len(a.ahead.epochs),
        keys=changed_keys(recipe_a, recipe_b),
        figures=side_by_side(*({name: getattr(f.ahead.sum, name) for name in COMPARED} for f in (a, b))),
        **clips_side_by_side(a, b),
    )


def changed_keys(a: Recipe, b: Recipe) -> list[ChangedKey]:
    """Return the keys with different values."""
    return [ChangedKey(*change) for change in diff.changes(toml_none.to_toml(a), toml_none.to_toml(b))]


def clips_side_by_side(*plans: PlanForecast | None) -> dict[str, list[ComparedNumber]]:
    """Return the clips of each bucket over all epochs, and by reason those that the first epoch leaves out; none of None."""
    buckets = ({} if plan is None else {share.name: share.clips for share in plan.ahead.shares} for plan in plans)
    reasons = ({} if plan is None else {name: one.clips for name, one in plan.left_out.items()} for plan in plans)
    return {"buckets": side_by_side(*buckets), "reasons": side_by_side(*reasons)}


def side_by_side(a: Mapping[str, float], b: Mapping[str, float]) -> list[ComparedNumber]:
    """Return the numbers of both by name; one that is missing is 0."""
    return [ComparedNumber(name, a.get(name, 0), b.get(name, 0)) for name in {**a, **b}]
