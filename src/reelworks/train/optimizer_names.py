"""The optimizers that a recipe may name: what each is, and what it cannot do. Holds no torch."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from reelworks.core.errors import UserError


@dataclass(frozen=True)
class Optimizer:
    """Facts about an optimizer that are known before it is built.

    Attributes:
        defaults: Keys of `[train]` whose default is another one with it.
        lacks: Keys of `[train]` that mean nothing to it.
        package: That it comes from, as pip names it, where that is not torch.
        whole: Why it must have whole weights on each rank; empty where shards do.
    """

    defaults: Mapping[str, Any] = field(default_factory=dict)
    lacks: tuple[str, ...] = ()
    package: str | None = None
    whole: str = ""


OPTIMIZERS = {
    "adamw": Optimizer(),
    "adamw8bit": Optimizer(
        package="bitsandbytes",
        whole="its state lies in blocks of 8-bit numbers, which cannot be cut as the weights are",
    ),
    "muon": Optimizer(whole="it works on whole matrices"),
    "prodigy": Optimizer(
        defaults={"learning_rate": 1.0},
        package="prodigyopt",
        whole="its rate follows from norms over all weights",
    ),
    "adafactor": Optimizer(
        defaults={"learning_rate": 1e-2},
        lacks=("betas", "eps"),
        whole="it keeps statistics of whole rows and columns",
    ),
}

_LACKED_BY_SOME = {key for one in OPTIMIZERS.values() for key in one.lacks}


def complete(values: dict[str, Any]) -> dict[str, Any]:
    """Give keys of `[train]` that were left out the optimizer's own default, and those that it lacks none.

    Raises:
        UserError: A key is given that the optimizer lacks.
    """
    name = values.get("optimizer", "adamw")
    one = OPTIMIZERS.get(name, Optimizer()) if isinstance(name, str) else Optimizer()
    for key in one.lacks:
        if values.get(key) is not None:
            raise UserError(
                f"{name} has no such number",
                code="unknown-optimizer-setting",
                field=f"train.{key}",
                value=values[key],
                remedy="leave it out",
            )
    given = {key: value for key, value in values.items() if value is not None or key not in _LACKED_BY_SOME}
    return {**one.defaults, **given, **dict.fromkeys(one.lacks)}


def require_installed(name: str) -> None:
    """Refuse an optimizer whose package is missing.

    Raises:
        UserError: Tells how to install it.
    """
    package = OPTIMIZERS[name].package
    if package is not None and importlib.util.find_spec(package) is None:
        raise UserError(
            f"it is in the package {package}, which is not installed",
            code="optimizer-package-missing",
            field="train.optimizer",
            value=name,
            remedy=f"pip install {package}",
        )


def require(name: str, strategy: str, world: int) -> None:
    """Refuse an optimizer that cannot train here.

    Args:
        name: As in a recipe.
        strategy: `parallel.strategy`.
        world: Processes.

    Raises:
        UserError: Its package is missing, or each process would have a shard of what it needs whole.
    """
    require_installed(name)
    whole = OPTIMIZERS[name].whole
    if whole and strategy == "fsdp" and world > 1:
        raise UserError(
            f'{whole}, and with parallel.strategy = "fsdp" each of {world} processes has a shard of the weights',
            code="optimizer-not-shardable",
            field="train.optimizer",
            value=name,
            remedy='set parallel.strategy = "replicated" where the weights fit onto each GPU, or '
            'train.optimizer = "adamw"',
        )
