"""Choose the cheapest settings with which a recipe fits into a GPU's memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from reelworks.data.buckets import table
from reelworks.data.buckets.table import BucketTable
from reelworks.models.components import geometry
from reelworks.training.memory import memory, published_sizes
from reelworks.training.memory.memory import Estimate, NetworkSizes
from reelworks.training.recipe.recipe import Recipe

if TYPE_CHECKING:
    from reelworks.models.api import Denoiser

T = TypeVar("T")


class MemoryPreset(NamedTuple):
    """A recipe setting that saves memory."""

    table: str
    key: str
    value: Any
    why: str  # what it saves and what it costs, for people
    passing: bool = False  # whether it saves activations, rather than memory that is held during the whole run
    without: tuple[str, str] | None = None  # table and key of an incompatible setting, which is then removed

    def to_text(self) -> str:
        """Return the setting as `table.key = value`."""
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
        "text_encoder", "device", "cpu", "text encoders in CPU memory, which takes seconds for each new caption"
    ),
    MemoryPreset("buckets", "batch_size", 1, "one clip at a time", passing=True),
    MemoryPreset("lora", "base", "int8", "frozen weights in 8 bits: slightly rounded, and widened at each use"),
    MemoryPreset("lora", "base", "nf4", "frozen weights in 4 bits: more rounded, and widened at each use"),
    MemoryPreset("autoencoder", "dtype", "bfloat16", "half its memory; latents differ in the third digit"),
    MemoryPreset(
        "parallel",
        "offload",
        True,
        "weights in CPU memory, not rounded and fetched block by block: slow if the link to the GPU is slow",
        without=("lora", "base"),
    ),
)


@dataclass(frozen=True)
class MemoryPlan:
    """The settings that make a recipe fit, with its estimate."""

    recipe: Recipe  # with these settings
    tiers: tuple[MemoryPreset, ...]
    estimate: Estimate
    fits: bool | None  # None if the GPU's memory is unknown
    without: tuple[int, ...] = ()  # for each setting, bytes that the recipe needs at least without it


def choose(recipe: Recipe, vram_bytes: int | None, given: Container[str] = ()) -> MemoryPlan:
    """Add settings one by one until a recipe fits; for an unknown GPU only the first, which most recipes need.

    Settings that save nothing in this recipe are skipped, so that each further one needs less memory, and so are those
    of keys that are given. Where activations cannot be measured, all that save them are taken, and nothing fits for sure.
    """
    tiers = [tier for tier in TIERS if f"{tier.table}.{tier.key}" not in given]
    if vram_bytes is None:
        first = TIERS[:1] if TIERS[0] in tiers else ()
        recipe = _with(recipe, *first) if first else recipe
        return MemoryPlan(recipe, first, _Search().estimate(recipe), None)
    search, taken, waiting = _Search(), dict[MemoryPreset, int](), tiers
    if not search.measures(recipe):
        for unmeasured in [tier for tier in tiers if tier.passing and search.saves(recipe, tier)]:
            waiting.remove(unmeasured)
            taken[unmeasured] = search.held(recipe)
            recipe = _with(recipe, unmeasured)
    while True:
        need = search.held(recipe)
        # The full estimate is slow: skip it if the recipe does not fit even without activations.
        result = search.estimate(recipe) if need <= vram_bytes else None
        need = need if result is None else result.memory.total
        if result is not None and need <= vram_bytes:
            return MemoryPlan(recipe, tuple(taken), result, result.measured or None, tuple(taken.values()))
        # One that saves nothing now may do so later: stored latents need the text encoder or the network at a time.
        tier = next((each for each in waiting if search.saves(recipe, each)), None)
        if tier is None:
            return MemoryPlan(recipe, tuple(taken), result or search.estimate(recipe), False, tuple(taken.values()))
        waiting.remove(tier)
        replaced = ((tier.table, tier.key), tier.without)
        taken = {old: size for old, size in taken.items() if (old.table, old.key) not in replaced}
        taken[tier] = need
        recipe = _with(recipe, tier)


class _Search:
    """Estimates of recipes that differ in few settings, of which networks, their sizes and their passes are kept.

    Only what is not among the published sizes is built and measured, which imports torch and takes long.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], Any] = {}

    def measures(self, recipe: Recipe) -> bool:
        """Whether activations can be measured."""
        return self._sizes(recipe).runs_on_meta

    def held(self, recipe: Recipe) -> int:
        """Return the bytes on the GPU without activations."""
        key = recipe.model_dump_json(exclude={"model": {"gradient_checkpointing"}, "buckets": True})
        return self._once("held", key, lambda: memory.without_activations(recipe, self._sizes(recipe)).total)

    def saves(self, recipe: Recipe, tier: MemoryPreset) -> bool:
        """Whether a setting changes the recipe and lowers its memory."""
        config = getattr(recipe, tier.table)
        if config is None or getattr(config, tier.key) == tier.value:
            return False
        return tier.passing or self.held(_with(recipe, tier)) < self.held(recipe)

    def estimate(self, recipe: Recipe) -> Estimate:
        buckets = bucket_table(recipe)
        if (known := published_sizes.find(recipe)) is not None:
            passes = {each.name: known.one_pass(recipe, each) for each in memory.largest_of_entries(buckets)}
        else:
            from reelworks.training.memory import estimate

            key = recipe.model_dump_json(include={"model", "lora", "buckets"})
            passes = self._once("passes", key, lambda: estimate.passes(recipe, self._network(recipe), buckets))
        return memory.from_passes(recipe, buckets, self._sizes(recipe), passes)

    def _sizes(self, recipe: Recipe) -> NetworkSizes:
        if (known := published_sizes.find(recipe)) is not None:
            return known.network(recipe)
        from reelworks.training.memory import estimate

        # Checkpointing changes no size, so that a network with another setting of it serves as well.
        key = recipe.model_dump_json(include={"model", "lora"}, exclude={"model": {"gradient_checkpointing"}})
        return self._once("sizes", key, lambda: estimate.sizes(recipe, self._network(recipe)))

    def _network(self, recipe: Recipe) -> Denoiser:
        from reelworks.training.memory import estimate

        key = recipe.model_dump_json(include={"model", "lora"})
        return self._once("network", key, lambda: estimate.network(recipe))

    def _once(self, kind: str, key: str, make: Callable[[], T]) -> T:
        if (kind, key) not in self._kept:
            self._kept[kind, key] = make()
        found: T = self._kept[kind, key]
        return found


def bucket_table(recipe: Recipe) -> BucketTable:
    """Build the buckets of a recipe."""
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
