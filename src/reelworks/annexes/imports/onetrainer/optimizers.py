"""Optimizers of OneTrainer: what they are here, and their defaults, which a config that was saved by hand leaves out."""

from __future__ import annotations

from typing import Any, NamedTuple

from reelworks.annexes.imports import rules
from reelworks.annexes.imports.draft import FormerSettings


class OneTrainerOptimizer(NamedTuple):
    """An optimizer by its name there; its defaults are those of `modules/util/optimizer_util.py`."""

    name: str  # here
    exact: bool = True  # whether it is the same here
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float | None = 1e-8
    weight_decay: float = 0.0


OPTIMIZERS = {
    name: OneTrainerOptimizer(**rules.defaults(found))
    for name, found in rules.table("onetrainer", "optimizers").items()
}
UNKNOWN = OneTrainerOptimizer("adamw", False)


def name_of(settings: FormerSettings) -> str:
    """Return the optimizer's name there."""
    return str(settings.get("optimizer.optimizer", "ADAMW"))


def setting(settings: FormerSettings, key: str) -> Any:
    """Return a setting of the optimizer: its own, or what the window remembers for it, or its default."""
    name = name_of(settings)
    for place in ("optimizer", f"optimizer_defaults.{name}"):
        if (value := settings.get(f"{place}.{key}")) is not None:
            return value
    return getattr(OPTIMIZERS.get(name, UNKNOWN), key, None)
