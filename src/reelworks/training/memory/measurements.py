"""Sizes and passes of networks, kept for estimates of recipes that differ in few settings.

Only what is not among the published sizes is built and measured, which imports torch and takes long.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from reelworks.data.buckets import table
from reelworks.data.buckets.table import Bucket, BucketTable
from reelworks.models.components import geometry
from reelworks.training.memory import memory, published_sizes
from reelworks.training.memory.memory import Estimate, NetworkSizes, Pass
from reelworks.training.recipe.recipe import Recipe

if TYPE_CHECKING:
    from reelworks.models.api import Denoiser

T = TypeVar("T")
_RECOMPUTATION = {"model": {"gradient_checkpointing"}}  # it changes no size


class Measurements:
    """Sizes and passes of networks, each found once."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], Any] = {}

    def measures(self, recipe: Recipe) -> bool:
        """Whether activations can be measured."""
        return self.sizes(recipe).runs_on_meta

    def held(self, recipe: Recipe) -> int:
        """Return the bytes on the GPU without activations."""
        key = recipe.model_dump_json(exclude={**_RECOMPUTATION, "buckets": True})
        return self._once("held", key, lambda: memory.without_activations(recipe, self.sizes(recipe)).total)

    def estimate(self, recipe: Recipe, buckets: BucketTable, shards: int = 1) -> Estimate:
        """Estimate memory and arithmetic of a recipe on one of so many ranks that share the weights."""
        return memory.from_passes(recipe, buckets, self.sizes(recipe), partial(self.one_pass, recipe), shards)

    def one_pass(self, recipe: Recipe, bucket: Bucket) -> Pass:
        """Return memory and operations of a micro-batch of a bucket."""
        if (known := published_sizes.find(recipe)) is not None:
            return known.one_pass(recipe, bucket)
        from reelworks.training.memory import estimate

        def whole(one: Bucket) -> Pass:
            key = f"{recipe.model_dump_json(include={'model', 'lora', 'train'})} {one}"
            return self._once("pass", key, lambda: estimate.one_pass(recipe, self.network(recipe), one))

        return memory.of_rank(recipe, bucket, whole)

    def sizes(self, recipe: Recipe) -> NetworkSizes:
        """Return the sizes of a recipe's network."""
        if (known := published_sizes.find(recipe)) is not None:
            return known.network(recipe)
        from reelworks.training.memory import estimate

        key = recipe.model_dump_json(include={"model", "lora"}, exclude=_RECOMPUTATION)
        return self._once("sizes", key, lambda: estimate.sizes(recipe, self.network(recipe)))

    def network(self, recipe: Recipe) -> Denoiser:
        """Return a recipe's network on the meta device."""
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
