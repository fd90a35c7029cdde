"""Settings that save memory, cheapest first, and the first of them that fits into a GPU."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

from reelworks.buckets import table
from reelworks.buckets.table import BucketTable
from reelworks.models.api import Denoiser
from reelworks.models.components import geometry
from reelworks.recipe.recipe import Recipe
from reelworks.train.preflight import estimate, memory
from reelworks.train.preflight.estimate import Estimate
from reelworks.train.preflight.meter import Pass


class MemoryPreset(NamedTuple):
    """One more setting.

    Attributes:
        table, key, value: As in a recipe.
        why: What it saves, and what it costs.
        passing: It saves activations; else what is held from the first step to the last.
        without: Table and key of a setting that does not go with it, and is left out.
    """

    table: str
    key: str
    value: Any
    why: str
    passing: bool = False
    without: tuple[str, str] | None = None

    def to_text(self) -> str:
        """Write it as it stands in a recipe."""
        return f"{self.table}.{self.key} = {json.dumps(self.value)}"


# Cheapest first; each is added to those before it.
TIERS = (
    MemoryPreset(
        "model",
        "gradient_checkpointing",
        True,
        "keeps block inputs alone for the backward pass, and is a third slower",
        passing=True,
    ),
    MemoryPreset(
        "text_encoder",
        "device",
        "cpu",
        "text encoders in CPU memory, where embedding a caption for the first time takes seconds",
    ),
    MemoryPreset("buckets", "batch_size", 1, "one clip at a time", passing=True),
    MemoryPreset(
        "lora", "base", "int8", "frozen weights in 8 bits: rounded a little, and widened at each use"
    ),
    MemoryPreset("lora", "base", "nf4", "frozen weights in 4 bits: rounded more, and widened at each use"),
    MemoryPreset("autoencoder", "dtype", "bfloat16", "half its memory; latents differ in the third digit"),
    MemoryPreset(
        "parallel",
        "offload",
        True,
        "weights in CPU memory, unrounded and fetched block by block: slow where the way to the GPU is",
        without=("lora", "base"),
    ),
)


@dataclass(frozen=True)
class MemoryPlan:
    """Settings that fit, and how they were found.

    Attributes:
        recipe: With the settings that were needed.
        tiers: Those settings.
        estimate: Of that recipe.
        fits: Whether it fits; None where the GPU's memory is not known.
        without: Of each setting, bytes that are needed at least without it.
    """

    recipe: Recipe
    tiers: tuple[MemoryPreset, ...]
    estimate: Estimate
    fits: bool | None
    without: tuple[int, ...] = ()


def choose(recipe: Recipe, vram_bytes: int | None) -> MemoryPlan:
    """Add settings one by one until a recipe fits; where the GPU is not known, the first, which most need.

    A setting that saves nothing in this recipe is passed over, so that the last one that is tried needs least.

    Raises:
        UserError: The recipe's parts do not fit together.
    """
    if vram_bytes is None:
        recipe = _with(recipe, TIERS[0])
        return MemoryPlan(recipe, TIERS[:1], estimate.estimate(recipe, _table(recipe)), None)
    search, taken, waiting = _Search(), dict[MemoryPreset, int](), list(TIERS)
    while True:
        need = search.held(recipe)
        found = (
            search.estimate(recipe) if need <= vram_bytes else None
        )  # else there is no need to look further
        if found is not None:
            need = found.memory.total
        while waiting and not search.saves(recipe, waiting[0]):
            waiting.pop(0)
        if need <= vram_bytes or not waiting:
            found = found or search.estimate(recipe)
            fits = found.memory.total <= vram_bytes
            return MemoryPlan(recipe, tuple(taken), found, fits, tuple(taken.values()))
        tier = waiting.pop(0)
        replaced = ((tier.table, tier.key), tier.without)
        taken = {one: size for one, size in taken.items() if (one.table, one.key) not in replaced}
        taken[tier] = need
        recipe = _with(recipe, tier)


class _Search:
    """Estimates of recipes that differ in few settings: each network is built once, and run once for each batch size."""

    def __init__(self) -> None:
        self._networks: dict[str, Denoiser] = {}
        self._passes: dict[str, dict[str, Pass]] = {}

    def held(self, recipe: Recipe) -> int:
        """Bytes on the GPU without activations."""
        return memory.held(recipe, self._network(recipe)).total

    def estimate(self, recipe: Recipe) -> Estimate:
        """Estimate a recipe; see `estimate.estimate`."""
        network, buckets = self._network(recipe), _table(recipe)
        key = recipe.model_dump_json(include={"model", "lora", "buckets"})
        if key not in self._passes:
            self._passes[key] = estimate.passes(recipe, network, buckets)
        return estimate.from_passes(recipe, buckets, network, self._passes[key])

    def saves(self, recipe: Recipe, tier: MemoryPreset) -> bool:
        """Whether a setting changes the recipe, and for the less."""
        config = getattr(recipe, tier.table)
        if config is None or getattr(config, tier.key) == tier.value:
            return False
        return tier.passing or self.held(_with(recipe, tier)) < self.held(recipe)

    def _network(self, recipe: Recipe) -> Denoiser:
        key = recipe.model_dump_json(include={"model", "lora"})
        if key not in self._networks:
            self._networks[key] = estimate.network(recipe)
        return self._networks[key]


def _table(recipe: Recipe) -> BucketTable:
    return table.build(recipe.bucket, recipe.buckets, geometry(recipe.model, recipe.autoencoder))


def _with(recipe: Recipe, tier: MemoryPreset) -> Recipe:
    if tier.without is not None:
        recipe = _set(recipe, *tier.without, None)
    return _set(recipe, tier.table, tier.key, tier.value)


def _set(recipe: Recipe, table: str, key: str, value: Any) -> Recipe:
    config = getattr(recipe, table)
    if config is None:
        return recipe
    return recipe.model_copy(update={table: config.model_copy(update={key: value})})
