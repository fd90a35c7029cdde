"""Folders and lists that a recipe names, and a catalog that knows what is in them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from reelworks.catalog import companions
from reelworks.catalog import scan as scanning
from reelworks.catalog.scan import ScanProgress, ScanResult
from reelworks.catalog.source import Source
from reelworks.recipe.recipe import Recipe


def of(recipe: Recipe) -> list[Source]:
    """Folders and lists that the recipe's datasets name."""
    return [d.place for d in recipe.dataset]


def of_companions(recipe: Recipe) -> list[Source]:
    """Folders of companions that they name.

    Raises:
        UserError: One lies in the folder of its clips.
    """
    return [s for d in recipe.dataset for s in companions.sources(d.place, d.companions)]


def scan(recipe: Recipe, on_progress: Callable[[ScanProgress], None] | None = None) -> ScanResult:
    """Bring the recipe's catalog up to date; unchanged files are not opened.

    Raises:
        UserError: A folder is missing or empty, a list is wrong, or the catalog cannot be written.
    """
    every = of(recipe) + of_companions(recipe)
    workers = os.cpu_count() or 1
    return scanning.scan(every, Path(recipe.catalog_folder), workers=workers, on_progress=on_progress)
