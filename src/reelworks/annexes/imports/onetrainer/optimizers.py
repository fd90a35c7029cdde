"""Optimizers of OneTrainer, whose settings a config that was saved by hand leaves out."""

from __future__ import annotations

from typing import Any

from reelworks.annexes.imports import tables
from reelworks.annexes.imports.draft import FormerSettings
from reelworks.annexes.imports.optimizers import FormerOptimizer, of_trainer

_OPTIMIZERS = of_trainer("onetrainer")  # their settings are those of `modules/util/optimizer_util.py`


def name_of(settings: FormerSettings) -> str:
    """Return the optimizer's name there."""
    return str(settings.get("optimizer.optimizer", "ADAMW"))


def find(settings: FormerSettings) -> FormerOptimizer:
    """Return the optimizer."""
    return tables.fitting(_OPTIMIZERS, name_of(settings))


def setting(settings: FormerSettings, key: str) -> Any:
    """Return a setting of the optimizer: its own, or what the window remembers for it, or its default."""
    places = ("optimizer", f"optimizer_defaults.{name_of(settings)}")
    given = (settings.get(f"{place}.{key}") for place in places)
    return next((value for value in given if value is not None), find(settings).settings.get(key))
