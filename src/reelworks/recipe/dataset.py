"""Open the dataset that a recipe describes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reelworks.buckets import table
from reelworks.buckets.table import BucketTable
from reelworks.catalog.scan import ScanProgress, ScanResult, scan_sources
from reelworks.catalog.store import Catalog
from reelworks.core.shape import Geometry
from reelworks.data import eligibility
from reelworks.data.dataset import Dataset, DataSpec, companion_sources, rows_of
from reelworks.models.components import geometry
from reelworks.recipe import auto_buckets
from reelworks.recipe.auto_buckets import Chosen
from reelworks.recipe.recipe import Recipe


@dataclass
class RecipeData(Dataset):
    """A recipe's dataset.

    Attributes:
        recipe: The recipe, with its bucket entries chosen.
        chosen: How the bucket entries were chosen; None if the recipe has its own.
    """

    recipe: Recipe = None  # type: ignore[assignment]  # `open` and `of_rows` set it
    chosen: Chosen | None = None

    @classmethod
    def open(cls, recipe: Recipe, version: int | None = None) -> RecipeData:
        """Read the newest catalog, or the given version of it, and compute the bucket table.

        Raises:
            UserError: There is no catalog, the buckets do not fit the model, or a filter or caption of the
                newest version names a score that no clip of its dataset has.
        """
        catalog = Catalog.open(Path(recipe.catalog_folder), version)
        opened = cls(catalog, table.EMPTY, spec_of(recipe), recipe=recipe)
        if version is None:  # scores that an earlier version lacks are not a mistake in the recipe
            eligibility.require_scores(recipe.dataset, opened.rows)
        if recipe.buckets.proposes:
            recipe, chosen = auto_buckets.choose(recipe, geometry_of(recipe), lambda: opened.clips()[0])
            opened = replace(opened, recipe=recipe, chosen=chosen)
        return replace(opened, table=table_of(recipe))

    @classmethod
    def of_rows(cls, recipe: Recipe, catalog: Catalog, ordinals: NDArray[np.int64]) -> RecipeData:
        """Make the dataset of some rows of an earlier catalog version, for a recipe with chosen bucket entries.

        Args:
            recipe: The recipe that was used with that version.
            catalog: The catalog at that version.
            ordinals: Ordinals of the rows, ascending.
        """
        spec, rows = spec_of(recipe), catalog.all_rows().take(ordinals)
        sources = companion_sources(spec.datasets)
        companions = rows_of(catalog.live(), sources) if sources else rows.take(ordinals[:0])
        return cls(catalog, table_of(recipe), spec, rows, companions, rows.digest(), recipe=recipe)

    @property
    def geometry(self) -> Geometry:
        """Geometry of the recipe's model and autoencoder."""
        return geometry_of(self.recipe)


def geometry_of(recipe: Recipe) -> Geometry:
    """Return the geometry of a recipe's model and autoencoder."""
    return geometry(recipe.model, recipe.autoencoder)


def table_of(recipe: Recipe) -> BucketTable:
    """Return the bucket table of a recipe with chosen bucket entries.

    Raises:
        UserError: The buckets do not fit the model.
    """
    extends_short = recipe.data.short_clips != "reject"
    return table.build(recipe.bucket, recipe.buckets, geometry_of(recipe), extends_short=extends_short)


def spec_of(recipe: Recipe) -> DataSpec:
    """Return the settings of a recipe that shape its dataset."""
    return DataSpec(
        tuple(recipe.dataset),
        recipe.seed,
        recipe.data,
        recipe.validation.split,
        recipe.validation.group,
        recipe.validation.max_clips,
        recipe.exclude_file,
        recipe.cost,
    )


def scan_recipe(recipe: Recipe, on_progress: Callable[[ScanProgress], None] | None = None) -> ScanResult:
    """Bring the recipe's catalog up to date; unchanged files are not opened.

    Raises:
        UserError: A folder is missing or empty, a list is invalid, or the catalog cannot be written.
    """
    sources = [d.place for d in recipe.dataset] + companion_sources(recipe.dataset)
    workers = os.cpu_count() or 1
    return scan_sources(sources, Path(recipe.catalog_folder), workers=workers, on_progress=on_progress)
