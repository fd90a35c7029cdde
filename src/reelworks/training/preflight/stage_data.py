"""Require that stages can be trained before one of them begins: at the border of two, nobody may be looking."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from reelworks.core import trust
from reelworks.data.distributed import layout
from reelworks.data.loader.catalog_view import companion_sources
from reelworks.data.loader.position import next_epoch
from reelworks.models.sequence import sequence_limits
from reelworks.training.observers import observer
from reelworks.training.plan import plan_forecast
from reelworks.training.recipe import recipe_file, stages
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.recipe.recipe import Recipe
from reelworks.training.step import optimizer_names


def require(
    recipe: Recipe,
    indices: Iterable[int],
    scan: Callable[[Recipe], object],
    world: int,
    local_ranks: int,
    begun: int | None = None,
) -> None:
    """Raise unless `world` ranks can train stages of a recipe, by their indices, and their data have a step.

    `begun` is the number of data ranks that the run began with. `scan` brings the catalog up to date. What it reads of a later stage is not read again when that begins.
    """
    scanned: Any = None
    for index in indices:
        with stages.naming(recipe.stage[index]):
            one = recipe_file.of_stage(recipe, index)
            ranks = one.parallel.data_ranks(world)
            optimizer_names.require(one.train.optimizer, layout.fixed(one.parallel, world, local_ranks))
            sources = [dataset.place for dataset in one.dataset], companion_sources(one.dataset), one.data.measures
            if sources != scanned:
                scan(one)
                scanned = sources
            data = RecipeData.open(one)
            sequence_limits.require_buckets(one.model, data.table)
            trust.require(one.samples.metrics, "samples.metrics")
            observer.require(one)
            next_epoch(data, plan_forecast.plan_spec(data, ranks, begun), None)
