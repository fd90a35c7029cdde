"""Compare two recipes: their keys and their plans."""

from __future__ import annotations

from typing import Any

from reelworks.recipe import diff
from reelworks.recipe.recipe import Recipe

Json = dict[str, Any]
FIGURES = ("steps", "clips", "tokens", "micro_batches", "incomplete", "imbalance", "padding")


def compare(before: tuple[Recipe, Json], after: tuple[Recipe, Json]) -> Json:
    """Compare two recipes and their forecasts.

    Args:
        before: A recipe and its `forecast`.
        after: The other recipe and its forecast, for the same numbers of ranks and epochs.

    Returns:
        Changed `keys`; `figures` over all epochs; clips by bucket (`buckets`) over all epochs; and clips by reason
        (`reasons`) in the first epoch. Each as `key` or `name`, `a`, `b`; a missing count is 0.
    """
    (recipe_a, a), (recipe_b, b) = before, after
    changed = diff.changes(diff.values(recipe_a), diff.values(recipe_b))
    return {
        "world": a["world"],
        "epochs": len(a["epochs"]),
        "keys": [{"key": change.key, "a": change.before, "b": change.after} for change in changed],
        "figures": [{"name": name, "a": a["sum"][name], "b": b["sum"][name]} for name in FIGURES],
        "buckets": _side_by_side(*({share["name"]: share["clips"] for share in f["shares"]} for f in (a, b))),
        "reasons": _side_by_side(*({k: one["clips"] for k, one in f["left_out"].items()} for f in (a, b))),
    }


def _side_by_side(a: dict[str, int], b: dict[str, int]) -> list[Json]:
    names = [*a, *(name for name in b if name not in a)]
    return [{"name": name, "a": a.get(name, 0), "b": b.get(name, 0)} for name in names]
