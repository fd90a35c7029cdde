"""Facts about the optimizers that a recipe may name. Does not import torch."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from reelworks.core.errors import UserError
from reelworks.data.distributed.layout import Layout


@dataclass(frozen=True)
class Optimizer:
    """Facts about an optimizer that are known before it is built.

    Attributes:
        defaults: Default values of `[train]` that differ with this optimizer.
        lacks: Keys of `[train]` that it does not have.
        package: Its package on PyPI; None for an optimizer of torch.
        module: Name under which the package is imported, if it differs.
        whole: Why each rank must hold whole weights; empty if the optimizer works on shards.
    """

    defaults: Mapping[str, Any] = field(default_factory=dict)
    lacks: tuple[str, ...] = ()
    package: str | None = None
    module: str | None = None
    whole: str = ""


_ROWS_AND_COLUMNS = "it keeps statistics of whole rows and columns"

OPTIMIZERS = {
    "adamw": Optimizer(),
    "adamw8bit": Optimizer(package="bitsandbytes"),
    # On shards, each matrix is gathered for its update.
    "muon": Optimizer(),
    "schedulefree": Optimizer(defaults={"learning_rate": 2.5e-3}, lacks=("ema_decay",), package="schedulefree"),
    "prodigy": Optimizer(
        defaults={"learning_rate": 1.0}, package="prodigyopt", whole="it computes its rate from norms over all weights"
    ),
    "adafactor": Optimizer(defaults={"learning_rate": 1e-2}, lacks=("betas", "eps"), whole=_ROWS_AND_COLUMNS),
    "came": Optimizer(lacks=("eps",), package="came-pytorch", module="came_pytorch", whole=_ROWS_AND_COLUMNS),
}

_LACKED_BY_SOME = {key for optimizer in OPTIMIZERS.values() for key in optimizer.lacks}


def complete(values: dict[str, Any]) -> dict[str, Any]:
    """Return values of `[train]` with the optimizer's own defaults; keys that it does not have must be
    left out, and are None.
    """
    name = values.get("optimizer", "adamw")
    optimizer = OPTIMIZERS.get(name, Optimizer()) if isinstance(name, str) else Optimizer()
    for key in optimizer.lacks:
        if values.get(key) is not None:
            raise UserError(
                f"{name} does not have this setting",
                code="unknown-optimizer-setting",
                field=f"train.{key}",
                value=values[key],
                remedy="leave it out",
            )
    for key in _LACKED_BY_SOME - {*optimizer.lacks}:
        if key in values and values[key] is None:
            raise UserError(
                f"{name} has this setting, and needs a value for it",
                code="unknown-optimizer-setting",
                field=f"train.{key}",
                value="none",
                remedy="leave it out for the default" + (", or write 0.0 for no average" * (key == "ema_decay")),
            )
    return {**optimizer.defaults, **values, **dict.fromkeys(optimizer.lacks)}


def require_installed(name: str) -> None:
    """Check that the optimizer's package is installed."""
    package = OPTIMIZERS[name].package
    if package is not None and importlib.util.find_spec(OPTIMIZERS[name].module or package) is None:
        raise UserError(
            f"it is in the package {package}, which is not installed",
            code="optimizer-package-missing",
            field="train.optimizer",
            value=name,
            remedy=f"pip install {package}",
        )


def require(name: str, layout: Layout | None) -> None:
    """Check that an optimizer can train with the weights in a layout; None if that is not chosen yet."""
    require_installed(name)
    whole = OPTIMIZERS[name].whole
    if whole and layout is not None and layout.shards > 1:
        raise UserError(
            f'{whole}, and with parallel.strategy = "{layout.strategy}" each of {layout.shards} ranks has a shard',
            code="optimizer-not-shardable",
            field="train.optimizer",
            value=name,
            remedy='set parallel.strategy = "replicated" if the weights fit onto each GPU, or '
            'train.optimizer = "adamw"',
        )
