"""Graphs that a plan compiles, and what sizes of a common token count cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from reelworks.data.buckets import families, graphs, sizes
from reelworks.data.buckets.config import parse_ratio
from reelworks.data.buckets.graphs import Graphs
from reelworks.data.schedule.plan import EpochPlan
from reelworks.models import components
from reelworks.training.recipe.dataset import RecipeData


@dataclass(frozen=True)
class TokenFamilies:
    """Sizes of all resolutions and aspect ratios, and what they would be without families.

    Attributes:
        token_counts: Different token counts of one frame over all resolutions, and those of the free sizes.
        crop: Mean share of a frame of each aspect ratio that is cropped away, and that of the free sizes.
        area: Mean number of pixels, as a factor of the resolution's.
    """

    token_counts: int
    free_token_counts: int
    crop: float
    free_crop: float
    area: float


@dataclass(frozen=True)
class PlannedGraphs:
    """Graphs of a plan.

    Attributes:
        compile: Whether the recipe compiles at all.
        graphs: Number of graphs, of at most `limit`.
        eager_buckets: Buckets that run without a graph.
        eager_micro_batches: Micro-batches of these buckets, and those that lack clips.
        caption_lengths: Factor by which captions of different lengths may multiply the graphs.
        families: None if the recipe has none.
    """

    compile: bool
    graphs: int
    limit: int
    eager_buckets: list[str]
    eager_micro_batches: int
    caption_lengths: int
    families: TokenFamilies | None


def choose(data: RecipeData, plan: EpochPlan) -> Graphs:
    """Choose the graphs that a run compiles for a plan."""
    full = np.bincount(_full_micro_batches(data, plan), minlength=len(data.table.buckets)).tolist()
    by_shape = components.family_config(data.recipe.model).network.passes.blocks_see_shapes
    return graphs.choose(data.table, full, data.geometry, data.recipe.train.compile_graphs, by_shape=by_shape)


def of_plan(data: RecipeData, plan: EpochPlan) -> PlannedGraphs:
    """Count the graphs of a plan and name the buckets that run without one."""
    chosen, table = choose(data, plan), data.table
    bucket = plan.micro_bucket
    full = _full_micro_batches(data, plan)
    multiple = components.family_config(data.recipe.model).network.passes.caption_multiple
    return PlannedGraphs(
        compile=data.recipe.train.compile,
        graphs=len(chosen.compiled),
        limit=data.recipe.train.compile_graphs,
        eager_buckets=[table.buckets[i].name for i in chosen.eager],
        eager_micro_batches=len(bucket) - int(np.isin(full, chosen.eager, invert=True).sum()),
        caption_lengths=-(-data.recipe.text_encoder.max_length // multiple) if multiple else 1,
        families=_families(data) if table.config.token_families else None,
    )


def _full_micro_batches(data: RecipeData, plan: EpochPlan) -> Any:
    """Return the bucket of each micro-batch that has as many places as its batch size."""
    bucket = plan.micro_bucket
    return bucket[np.diff(plan.offsets) >= data.table.column_sizes()[bucket]]


def _families(data: RecipeData) -> TokenFamilies:
    """Compare the sizes of all resolutions and aspect ratios with those that they have without families."""
    config, multiple = data.table.config, data.geometry.multiple
    ratios = tuple(parse_ratio(text) for text in config.aspect_ratios)
    names = {entry.resolution for entry in data.table.entries if entry.size is None}
    if not names:
        return TokenFamilies(0, 0, 0.0, 0.0, 1.0)
    token_counts = free_token_counts = 0
    crop, free_crop, area = list[float](), list[float](), list[float]()
    for name in sorted(names):
        chosen = families.sizes_of(name, ratios, multiple, config.token_family_crop)
        free = [sizes.size_at(name, ratio, multiple) for ratio in ratios]
        token_counts += len({math.prod(size) for size in chosen})
        free_token_counts += len({math.prod(size) for size in free})
        crop += map(families.lost, chosen, ratios)
        free_crop += map(families.lost, free, ratios)
        pixels, _ = sizes.pixel_budget(name)
        area += [math.prod(size) / pixels for size in chosen]
    means = (float(np.mean(shares)) for shares in (crop, free_crop, area))
    return TokenFamilies(token_counts, free_token_counts, *means)


def lines(planned: PlannedGraphs) -> list[str]:
    """Describe the graphs of a plan for people; nothing if the recipe neither compiles nor has token families."""
    result = []
    if (family := planned.families) is not None and family.token_counts:
        result.append(
            f"token families: different token counts of a frame: {family.token_counts} instead of "
            f"{family.free_token_counts}; a frame of each aspect ratio loses {family.crop:.1%} on average "
            f"instead of {family.free_crop:.1%}; pixels {family.area - 1:+.1%}"
        )
    if not planned.compile:
        return result
    captions = f", each for up to {planned.caption_lengths} caption lengths" if planned.caption_lengths > 1 else ""
    result.append(f"graphs to compile: {planned.graphs} of at most {planned.limit}{captions}")
    if planned.eager_micro_batches:
        result.append(f"micro-batches that run without compilation: {planned.eager_micro_batches}")
    if planned.eager_buckets:
        result.append(
            f"warning: train.compile_graphs = {planned.limit} leaves no graph for {', '.join(planned.eager_buckets)}"
        )
    return result
