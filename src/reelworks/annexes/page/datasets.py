"""Datasets of recipes and catalogs, opened once for all parts of the page that show them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import overload
from weakref import WeakValueDictionary

from reelworks.annexes.page.file_status import FileStatus, status
from reelworks.data.buckets import table
from reelworks.data.catalog.store.store import Catalog
from reelworks.data.loader.dataset import Dataset
from reelworks.data.run.folder import RunFolder
from reelworks.training.plan import plan_forecast
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.recipe.recipe import Recipe

CATALOG_FILE = "catalog.json"
_Key = tuple[str, Path, tuple[FileStatus, ...]]


class Datasets:
    """The datasets that parts of the page hold; whoever opens one of them gets the same, with all columns read so far."""

    def __init__(self) -> None:
        self._opened: WeakValueDictionary[_Key, Dataset] = WeakValueDictionary()
        self._lock = threading.Lock()

    @overload
    def open(self, recipe: Recipe, catalog: Path) -> RecipeData: ...
    @overload
    def open(self, recipe: Recipe | None, catalog: Path) -> Dataset: ...
    def open(self, recipe: Recipe | None, catalog: Path) -> Dataset:
        """Return the dataset of a recipe, or of a catalog without buckets; opened again once their files have changed."""
        key = ("" if recipe is None else recipe.model_dump_json(), catalog, stamp(recipe, catalog))
        with self._lock:
            known = self._opened.get(key)
        if known is not None:
            return known
        # Outside of the lock: the datasets of other recipes are not to wait. Two that open the same share the first.
        if recipe is None:
            opened = Dataset(Catalog.open(catalog), table.EMPTY)
        else:
            opened = plan_forecast.settled(RecipeData.open(recipe))
        with self._lock:
            return self._opened.setdefault(key, opened)


def stamp(recipe: Recipe | None, catalog: Path) -> tuple[FileStatus, ...]:
    """Return the states of the files that a dataset is made of, beside the recipe."""
    paths = [catalog / CATALOG_FILE]
    if recipe is not None:
        paths += [] if recipe.exclude_file is None else [Path(recipe.exclude_file)]
        paths += [RunFolder(Path(recipe.output)).recipe_file] if recipe.buckets.proposes else []
    return tuple(map(status, paths))
