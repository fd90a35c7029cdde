"""Optimizers of OneTrainer: what they are here, and their defaults, which a config that was saved by hand leaves out."""

from __future__ import annotations

from typing import Any, NamedTuple

from reelworks.compat.draft import FormerSettings


class FormerOptimizer(NamedTuple):
    """An optimizer by its name there; its defaults are those of `modules/util/optimizer_util.py`."""

    name: str  # here
    exact: bool = True  # whether it is the same here
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float | None = 1e-8
    weight_decay: float = 0.0


_ADAM_LIKE = {
    "ADOPT": FormerOptimizer("adamw", False, beta2=0.9999, eps=1e-6),
    "ADOPT_ADV": FormerOptimizer("adamw", False, beta2=0.9999, eps=1e-6),
    "AdEMAMix": FormerOptimizer("adamw", False, weight_decay=0.01),
    "AdEMAMix_8BIT": FormerOptimizer("adamw8bit", False, weight_decay=0.01),
    "LAMB": FormerOptimizer("adamw", False),
    "LAMB_8BIT": FormerOptimizer("adamw8bit", False),
    "YOGI": FormerOptimizer("adamw", False),
    "ADABELIEF": FormerOptimizer("adamw", False),
    "AIDA": FormerOptimizer("adamw", False),
    **{name: FormerOptimizer("prodigy", False) for name in ("DADAPT_ADA_GRAD", "DADAPT_ADAM", "DADAPT_LION")},
    **{name: FormerOptimizer("prodigy", False) for name in ("DADAPT_SGD", "DADAPT_ADAN")},
}
OPTIMIZERS = {
    **_ADAM_LIKE,
    "ADAMW": FormerOptimizer("adamw", weight_decay=0.01),
    "ADAM": FormerOptimizer("adamw"),
    "ADAMW_8BIT": FormerOptimizer("adamw8bit", weight_decay=0.01),
    "ADAM_8BIT": FormerOptimizer("adamw8bit"),
    "ADAMW_ADV": FormerOptimizer("adamw", beta2=0.99),
    "PRODIGY": FormerOptimizer("prodigy"),
    "PRODIGY_ADV": FormerOptimizer("prodigy", False, beta2=0.99),
    "PRODIGY_PLUS_SCHEDULE_FREE": FormerOptimizer("prodigy", False, beta2=0.99),
    "SCHEDULE_FREE_ADAMW": FormerOptimizer("schedulefree", weight_decay=0.01),
    "ADAFACTOR": FormerOptimizer("adafactor", False, eps=None),
    "CAME": FormerOptimizer("came", eps=None, weight_decay=0.01),
    "CAME_8BIT": FormerOptimizer("came", False, eps=None, weight_decay=0.01),
    "MUON": FormerOptimizer("muon"),
    "MUON_ADV": FormerOptimizer("muon", False),
    "ADAMUON_ADV": FormerOptimizer("muon", False),
}
UNKNOWN = FormerOptimizer("adamw", False)


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
