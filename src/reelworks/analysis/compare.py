"""Two recipes side by side: what differs in them and in what they plan."""

from __future__ import annotations

from typing import Any

from reelworks.recipe import diff
from reelworks.recipe.recipe import Recipe

Json = dict[str, Any]
FIGURES = ("steps", "clips", "tokens", "micro_batches", "incomplete", "imbalance", "padding")


def compare(before: tuple[Recipe, Json], after: tuple[Recipe, Json]) -> Json:
    """Compare two recipes and their forecasts.

    Args:
        before: A recipe and what `forecast` said of it.
        after: The other one, for as many ranks and epochs.

    Returns:
        Changed keys; `figures` over all epochs; clips by bucket over all epochs, and clips by reason in the
        first one, 0 where a recipe has none of them. Each as `key` or `name`, `a`, `b`.
    """
    (recipe_a, a), (recipe_b, b) = before, after
    changed = diff.changes(diff.values(recipe_a), diff.values(recipe_b))
    return {
        "world": a["world"],
        "epochs": len(a["epochs"]),
        "keys": [{"key": one.key, "a": one.before, "b": one.after} for one in changed],
        "figures": [{"name": name, "a": a["sum"][name], "b": b["sum"][name]} for name in FIGURES],
        "buckets": _side_by_side(*({one["name"]: one["clips"] for one in told["shares"]} for told in (a, b))),
        "reasons": _side_by_side(
            *({reason: one["clips"] for reason, one in told["left_out"].items()} for told in (a, b))
        ),
    }


def _side_by_side(a: dict[str, int], b: dict[str, int]) -> list[Json]:
    names = [*a, *(name for name in b if name not in a)]
    return [{"name": name, "a": a.get(name, 0), "b": b.get(name, 0)} for name in names]
