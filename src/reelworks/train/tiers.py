"""Settings that save memory, cheapest first, and the first of them that fits into a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from reelworks.buckets import table
from reelworks.buckets.table import BucketTable
from reelworks.models.config import geometry
from reelworks.recipe.recipe import Recipe
from reelworks.train import estimate
from reelworks.train.estimate import Estimate


class Tier(NamedTuple):
    """One more setting.

    Attributes:
        table, key, value: As in a recipe.
        why: What it saves, and what it costs.
    """

    table: str
    key: str
    value: Any
    why: str


# Each is added to those before it.
TIERS = (
    Tier(
        "model",
        "gradient_checkpointing",
        True,
        "keeps block inputs alone for the backward pass, and is a third slower",
    ),
    Tier("buckets", "batch_size", 1, "one clip at a time"),
)


@dataclass(frozen=True)
class Choice:
    """What fits, and how it was found.

    Attributes:
        recipe: With the settings that were needed.
        tiers: Those settings.
        estimate: Of that recipe.
        fits: Whether it fits; None where the GPU's memory is not known.
        without: Of each setting, bytes that are needed at least without it.
    """

    recipe: Recipe
    tiers: tuple[Tier, ...]
    estimate: Estimate
    fits: bool | None
    without: tuple[int, ...] = ()


def choose(recipe: Recipe, vram_bytes: int | None) -> Choice:
    """Add settings one by one until a recipe fits; where the GPU is not known, the first, which most need.

    Raises:
        UserError: The recipe's parts do not fit together.
    """
    if vram_bytes is None:
        recipe = _with(recipe, TIERS[0])
        return Choice(recipe, TIERS[:1], estimate.estimate(recipe, _table(recipe)), None)
    taken: list[Tier] = []
    without: list[int] = []
    waiting = [tier for tier in TIERS if not _has(recipe, tier)]
    while True:
        held = estimate.held(recipe)
        need = held.memory.total
        if need <= vram_bytes or not waiting:  # else there is no need to look further
            found = estimate.estimate(recipe, _table(recipe), held)
            need = found.memory.total
            if need <= vram_bytes or not waiting:
                return Choice(recipe, tuple(taken), found, need <= vram_bytes, tuple(without))
        without.append(need)
        taken.append(waiting.pop(0))
        recipe = _with(recipe, taken[-1])


def _table(recipe: Recipe) -> BucketTable:
    return table.build(recipe.bucket, recipe.buckets, geometry(recipe.model, recipe.autoencoder))


def _has(recipe: Recipe, tier: Tier) -> bool:
    return bool(getattr(getattr(recipe, tier.table), tier.key) == tier.value)


def _with(recipe: Recipe, tier: Tier) -> Recipe:
    changed = getattr(recipe, tier.table).model_copy(update={tier.key: tier.value})
    return recipe.model_copy(update={tier.table: changed})
