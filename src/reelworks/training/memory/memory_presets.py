"""Choose the cheapest settings with which a recipe fits into a GPU's memory."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from reelworks.data.buckets.entry import Recomputation
from reelworks.training.memory import recomputation
from reelworks.training.memory.measurements import Measurements, bucket_table
from reelworks.training.memory.memory import Estimate
from reelworks.training.recipe.recipe import Recipe


class MemoryPreset(NamedTuple):
    """A recipe setting that saves memory."""

    table: str
    key: str
    value: Any
    why: str  # what it saves and what it costs, for people
    passing: bool = False  # whether it saves activations, rather than memory that is held during the whole run
    without: tuple[str, str] | None = None  # table and key of an incompatible setting, which is then removed

    @property
    def keys(self) -> list[str]:
        """Recipe keys that it sets or removes."""
        return [".".join(key) for key in ((self.table, self.key), self.without) if key is not None]

    def to_text(self) -> str:
        """Return the setting as `table.key = value`."""
        return f"{self.table}.{self.key} = {json.dumps(self.value)}"


# Cheapest first; each is added to those before it.
TIERS = (
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
    """The settings that make a recipe fit, with its estimate.

    Attributes:
        recomputation: What backward passes compute again, by entry, where the recipe leaves it to memory.
    """

    recipe: Recipe  # with these settings
    tiers: tuple[MemoryPreset, ...]
    estimate: Estimate
    fits: bool | None  # None if the GPU's memory is unknown
    without: tuple[int, ...] = ()  # for each setting, bytes that the recipe needs at least without it
    recomputation: Mapping[str, Recomputation] = field(default_factory=dict)


def choose(recipe: Recipe, vram_bytes: int | None, given: Container[str] = ()) -> MemoryPlan:
    """Add settings one by one until a recipe fits; none for an unknown GPU.

    Settings that save nothing in this recipe are skipped, so that each further one needs less memory, and so are those
    that would set or remove a key that is given. Where activations cannot be measured, all that save them are taken, and
    nothing fits for sure.
    """
    tiers = [tier for tier in TIERS if not any(key in given for key in tier.keys)]
    search, taken, waiting = Measurements(), dict[MemoryPreset, int](), tiers

    def planned(fits: bool | None, found: _Estimated) -> MemoryPlan:
        return MemoryPlan(recipe, tuple(taken), found.estimate, fits, tuple(taken.values()), found.recomputation)

    if vram_bytes is None:
        return planned(None, _estimated(recipe, None, search))
    if not search.measures(recipe):
        for unmeasured in [tier for tier in tiers if tier.passing and _saves(recipe, tier, search)]:
            waiting.remove(unmeasured)
            taken[unmeasured] = search.held(recipe)
            recipe = _with(recipe, unmeasured)
    while True:
        need = search.held(recipe)
        # The full estimate is slow: skip it if the recipe does not fit even without activations.
        found = _estimated(recipe, vram_bytes, search) if need <= vram_bytes else None
        need = need if found is None else found.estimate.memory.total
        if found is not None and need <= vram_bytes:
            return planned(found.estimate.measured or None, found)
        # One that saves nothing now may do so later: stored latents need the text encoder or the network at a time.
        tier = next((each for each in waiting if _saves(recipe, each, search)), None)
        if tier is None:
            return planned(False, found or _estimated(recipe, vram_bytes, search))
        waiting.remove(tier)
        replaced = ((tier.table, tier.key), tier.without)
        taken = {old: size for old, size in taken.items() if (old.table, old.key) not in replaced}
        taken[tier] = need
        recipe = _with(recipe, tier)


class _Estimated(NamedTuple):
    estimate: Estimate
    recomputation: Mapping[str, Recomputation]


def _estimated(recipe: Recipe, vram_bytes: int | None, search: Measurements) -> _Estimated:
    """Estimate a recipe as it will be trained on a GPU of so much memory, or of as little as possible."""
    if vram_bytes is not None:
        cards = recomputation.Cards(recomputation.limit(recipe, vram_bytes), measured=search)
        recipe = recomputation.settled(recipe, bucket_table(recipe), cards)
    return _Estimated(search.estimate(recipe, bucket_table(recipe)), recipe.buckets.gradient_checkpointing)


def _saves(recipe: Recipe, tier: MemoryPreset, search: Measurements) -> bool:
    """Whether a setting changes the recipe and lowers its memory."""
    if tier.passing:  # entries may all say it themselves
        return bucket_table(_with(recipe, tier)).buckets != bucket_table(recipe).buckets
    return search.held(_with(recipe, tier)) < search.held(recipe)


def _with(recipe: Recipe, tier: MemoryPreset) -> Recipe:
    removed = [] if tier.without is None else [(*tier.without, None)]
    for table, key, value in (*removed, (tier.table, tier.key, tier.value)):
        if (config := getattr(recipe, table)) is not None:
            recipe = recipe.model_copy(update={table: config.model_copy(update={key: value})})
    return recipe
