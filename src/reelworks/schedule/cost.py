"""Cost of a clip of each bucket, its weight in the loss, and the time that ranks wait for each other.

Costs are integers, so that every platform orders them alike.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from reelworks.core.errors import UserError
from reelworks.schedule.config import CostConfig

_MAX_US = 86_400_000_000  # a day; the sum of ten million of these still fits 64 bits
_FINER = 1000
_ROUNDING = 0.01  # largest relative error that rounding to integers may cause


def costs_us(
    names: Sequence[str], tokens: NDArray[np.int64], config: CostConfig, measured_ms: Mapping[str, float]
) -> tuple[int, ...]:
    """Return the cost of a clip of each bucket in microseconds, or in a finer unit if rounding would distort ratios.

    Args:
        names: Names of the buckets.
        tokens: Latent tokens of one clip, per bucket.
        config: Formula for buckets that were not measured.
        measured_ms: Milliseconds per clip by bucket name; the formula is scaled by the median ratio to it.

    Raises:
        UserError: A clip would take longer than a day.
    """
    n = tokens.astype(np.float64)
    known = np.array([measured_ms.get(name, np.nan) * 1000 for name in names])
    with np.errstate(all="ignore"):  # values that overflow are refused below
        formula = config.per_clip_us + config.per_token_us * n + config.per_token_squared_us * n * n
        ratios = (known / formula)[~np.isnan(known)]
        scaled = formula * (float(np.median(ratios)) if len(ratios) else 1.0)
    costs = np.where(np.isnan(known), scaled, known)
    for name, cost in zip(names, costs.tolist(), strict=True):
        if not cost <= _MAX_US:
            raise _too_long(name, cost, config)
    while (abs(costs.round() - costs) > _ROUNDING * costs).any() and costs.max(initial=0) * _FINER <= _MAX_US:
        costs = costs * _FINER
    return tuple(max(round(cost), 1) for cost in costs.tolist())


def _too_long(name: str, cost_us: float, config: CostConfig) -> UserError:
    return UserError(
        f"one clip of {name} would take longer than a day",
        code="cost-too-large",
        field="cost.measured" if config.measured else "cost",
        value=f"{cost_us / 1e6:.3g} seconds",
        remedy="lower the numbers: the formula is in microseconds, measured costs are in milliseconds",
    )


LossReduction = Literal["token", "sample", "micro_batch"]
I64 = NDArray[np.int64]


def loss_weight(loss_reduction: LossReduction, tokens: I64 | int, clips: I64 | int) -> NDArray[np.float64]:
    """Return the loss weight of a clip of a micro-batch, or of each of several; only ratios of weights matter.

    Args:
        loss_reduction: The unit that has equal weight, `train.loss_reduction`.
        tokens: Latent tokens of one clip of the micro-batch's bucket.
        clips: Number of clips that the micro-batch trains.
    """
    match loss_reduction:
        case "token":
            return np.asarray(tokens, dtype=np.float64)
        case "sample":
            return np.ones(np.shape(tokens))
        case "micro_batch":
            return np.asarray(1.0 / np.maximum(clips, 1))


F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Waste:
    """Wasted shares of training time, in [0, 1].

    Attributes:
        same_step: 1 - mean of (mean / largest cost) over the micro-batches that run together: the time that
            ranks with a micro-batch wait for the slowest.
        in_all: 1 - cost of the clips / time of all ranks: waiting, ranks without a micro-batch and padding
            copies together.
    """

    same_step: float
    in_all: float


def measure(rows: I64, clips: I64, places: I64, clip_costs: F64, world: int) -> Waste:
    """Return the wasted time of a plan's rows.

    Args:
        rows: `[steps, G]` micro-batch indices, -1 for none.
        clips: Clips that each micro-batch trains.
        places: Clips and padding copies that each micro-batch runs.
        clip_costs: Cost of one clip of each micro-batch's bucket.
        world: Number of ranks, which synchronise after every `world` columns.
    """
    if not len(rows):
        return Waste(0.0, 0.0)
    together = _columns(rows, world)
    present = together >= 0
    costs = np.where(present, (places * clip_costs)[together], 0.0)
    largest = costs.max(axis=1)
    even = costs.sum(axis=1) / present.sum(axis=1) / largest
    useful = np.where(present, (clips * clip_costs)[together], 0.0).sum()
    return Waste(float(1 - even.mean()), float(1 - useful / (largest.sum() * world)))


def _columns(rows: I64, world: int) -> I64:
    """Return the micro-batches that run together, `[steps * columns, world]`, without empty columns."""
    width = -(-rows.shape[1] // world) * world
    padded = np.full((len(rows), width), -1, dtype=np.int64)
    padded[:, : rows.shape[1]] = rows
    together = padded.reshape(-1, world)
    return together[together[:, 0] >= 0]


def read_measured(path: str | None, names: Sequence[str]) -> dict[str, float]:
    """Read the milliseconds per clip by bucket name from the file of `cost.measured`; empty if `path` is None.

    Args:
        path: Path of the file, or None.
        names: Names of the recipe's buckets; the file may lack some and have others.

    Raises:
        UserError: The file cannot be read, holds other values than positive numbers, or names none of the buckets.
    """
    if path is None:
        return {}
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise _bad(path, f"it cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise _bad(path, f"it is not JSON ({error})") from error
    if not isinstance(values, dict):
        raise _bad(path, "it is not a JSON object")
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise _bad(path, f'"{name}" is {value!r}, not a positive number of milliseconds')
    if values.keys().isdisjoint(names):
        raise _bad(path, f"it names none of the buckets ({', '.join(names[:3])}, ...)")
    return {name: float(value) for name, value in values.items()}


def _bad(path: str, problem: str) -> UserError:
    return UserError(
        problem,
        code="cost-table-invalid",
        field="cost.measured",
        value=path,
        remedy="write it again with `reelworks report RUN --costs FILE`, or remove the key",
    )
