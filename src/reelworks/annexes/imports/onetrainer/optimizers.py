"""Optimizers of OneTrainer: what they are here, and their defaults, which a config that was saved by hand leaves out."""

from __future__ import annotations

from typing import Any, NamedTuple

from reelworks.annexes.imports.draft import FormerSettings


class OneTrainerOptimizer(NamedTuple):
    """An optimizer by its name there; its defaults are those of `modules/util/optimizer_util.py`."""

    name: str  # here
    exact: bool = True  # whether it is the same here
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float | None = 1e-8
    weight_decay: float = 0.0


_ADAM_LIKE = {
    "ADOPT": OneTrainerOptimizer("adamw", False, beta2=0.9999, eps=1e-6),
    "ADOPT_ADV": OneTrainerOptimizer("adamw", False, beta2=0.9999, eps=1e-6),
    "AdEMAMix": OneTrainerOptimizer("adamw", False, weight_decay=0.01),
    "AdEMAMix_8BIT": OneTrainerOptimizer("adamw8bit", False, weight_decay=0.01),
    "LAMB": OneTrainerOptimizer("adamw", False),
    "LAMB_8BIT": OneTrainerOptimizer("adamw8bit", False),
    "YOGI": OneTrainerOptimizer("adamw", False),
    "ADABELIEF": OneTrainerOptimizer("adamw", False),
    "AIDA": OneTrainerOptimizer("adamw", False),
    **{name: OneTrainerOptimizer("prodigy", False) for name in ("DADAPT_ADA_GRAD", "DADAPT_ADAM", "DADAPT_LION")},
    **{name: OneTrainerOptimizer("prodigy", False) for name in ("DADAPT_SGD", "DADAPT_ADAN")},
}
OPTIMIZERS = {
    **_ADAM_LIKE,
    "ADAMW": OneTrainerOptimizer("adamw", weight_decay=0.01),
    "ADAM": OneTrainerOptimizer("adamw"),
    "ADAMW_8BIT": OneTrainerOptimizer("adamw8bit", weight_decay=0.01),
    "ADAM_8BIT": OneTrainerOptimizer("adamw8bit"),
    "ADAMW_ADV": OneTrainerOptimizer("adamw", beta2=0.99),
    "PRODIGY": OneTrainerOptimizer("prodigy"),
    "PRODIGY_ADV": OneTrainerOptimizer("prodigy", False, beta2=0.99),
    "PRODIGY_PLUS_SCHEDULE_FREE": OneTrainerOptimizer("prodigy", False, beta2=0.99),
    "SCHEDULE_FREE_ADAMW": OneTrainerOptimizer("schedulefree", weight_decay=0.01),
    "ADAFACTOR": OneTrainerOptimizer("adafactor", False, eps=None),
    "CAME": OneTrainerOptimizer("came", eps=None, weight_decay=0.01),
    "CAME_8BIT": OneTrainerOptimizer("came", False, eps=None, weight_decay=0.01),
    "MUON": OneTrainerOptimizer("muon"),
    "MUON_ADV": OneTrainerOptimizer("muon", False),
    "ADAMUON_ADV": OneTrainerOptimizer("muon", False),
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
