"""Cost of a micro-batch of each bucket, and the weight of a clip in the loss.

Costs are integers, so that every platform orders them alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from reelworks.core import user_files
from reelworks.core.arrays import F64, I64
from reelworks.core.config import Private, PublicConfig
from reelworks.core.errors import UserError
from reelworks.data.schedule.cost_fit import BatchTime
from reelworks.data.schedule.plan import PlanSpec

LossReduction = Literal["token", "sample", "micro_batch"]

_MAX_US = 86_400_000_000  # a day; the sum of ten million of these still fits 64 bits
_FINER = 1000
_UNKNOWN = BatchTime(math.nan, math.nan)
_ROUNDING = 0.01  # largest relative error that rounding to integers may cause


class CostConfig(PublicConfig):
    """`[cost]`: training time of micro-batches; only ratios between buckets matter.

    Attributes:
        measured: Path of a JSON file with the milliseconds of a micro-batch by bucket name, `per_batch` and `per_clip` or
            a number per clip, as `reelworks report RUN --costs FILE` and `reelworks tune` write it; buckets missing from
            it use the formula, scaled to the measured buckets.
        per_clip_us: Microseconds per clip.
        per_token_us: Microseconds per latent token.
        per_token_squared_us: Microseconds per pair of latent tokens, for full attention over long clips.
    """

    measured: Private[str | None] = Field(default=None, min_length=1)
    per_clip_us: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    per_token_us: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    per_token_squared_us: float = Field(default=0.0, ge=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _costs_something(self) -> CostConfig:
        if not self.per_clip_us + self.per_token_us + self.per_token_squared_us:
            raise UserError(
                "no bucket would take any time",
                code="cost-of-nothing",
                field="cost.per_token_us",
                value=self.per_token_us,
                remedy="set it, cost.per_clip_us or cost.per_token_squared_us above 0",
            )
        return self


def costs_us(
    names: Sequence[str],
    tokens: I64,
    config: CostConfig,
    measured_ms: Mapping[str, BatchTime],
    recomputed: Sequence[float] | None = None,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the cost of a clip of each bucket, and what its micro-batch costs besides, empty if none costs anything.

    Both are in microseconds, or in a finer unit if rounding would distort ratios.
    `tokens` are those of one clip of each bucket, `recomputed` the share of a forward pass that its backward pass computes
    again: a third of a step has the forward pass. The formula of `config` counts for clips of buckets that were not measured,
    scaled by the median ratio to those that were, and the median of what their micro-batches cost besides. A clip of more
    than a day is refused.
    """
    n = tokens.astype(np.float64)
    known = 1000 * np.array([astuple(measured_ms.get(name, _UNKNOWN)) for name in names]).reshape(-1, 2).T
    is_known = ~np.isnan(known[0])
    with np.errstate(all="ignore"):  # values that overflow are refused below
        formula = config.per_clip_us + config.per_token_us * n + config.per_token_squared_us * n * n
        if recomputed is not None and any(recomputed):
            formula *= 1 + np.array(recomputed) / 3
        terms = np.stack([np.ones_like(formula), formula])  # of a micro-batch, and of a clip
        usual = np.median((known / terms)[:, is_known], axis=1) if is_known.any() else np.array([0.0, 1.0])
        costs = np.where(is_known, known, usual[:, None] * terms)
    for name, cost in zip(names, costs.sum(axis=0).tolist(), strict=True):
        if not cost <= _MAX_US:
            raise UserError(
                f"one clip of {name} would take longer than a day",
                code="cost-too-large",
                field="cost.measured" if config.measured else "cost",
                value=f"{cost / 1e6:.3g} seconds",
                remedy="lower the numbers: the formula is in microseconds, measured costs are in milliseconds",
            )
    while (abs(costs.round() - costs) > _ROUNDING * costs).any() and costs.max(initial=0) * _FINER <= _MAX_US:
        costs = costs * _FINER
    per_batch, per_clip = costs.round().astype(np.int64)
    return tuple(np.maximum(per_clip, 1).tolist()), tuple(per_batch.tolist()) if per_batch.any() else ()


def unit_seconds(names: Sequence[str], measured_ms: Mapping[str, BatchTime], spec: PlanSpec) -> float | None:
    """Return the seconds of a unit of the costs that `costs_us` made of these times; None without times of its buckets."""
    costs = dict(zip(names, spec.costs(np.arange(len(names)), np.int64(1)).tolist(), strict=True))
    largest = max(costs.keys() & measured_ms.keys(), key=costs.__getitem__, default=None)
    return None if largest is None else measured_ms[largest].milliseconds(1) / 1000 / costs[largest]


def loss_weight(loss_reduction: LossReduction, tokens: I64 | int, clips: I64 | int) -> F64:
    """Return the loss weight of a clip in a micro-batch of `clips` clips of `tokens` latent tokens each.

    Both may be arrays over micro-batches. Only ratios of weights matter; each `loss_reduction` has equal weight.
    """
    match loss_reduction:
        case "token":
            return np.asarray(tokens, dtype=np.float64)
        case "sample":
            return np.ones(np.shape(tokens))
        case "micro_batch":
            return np.asarray(1.0 / np.maximum(clips, 1))


def read_measured(path: str | None, names: Sequence[str]) -> dict[str, BatchTime]:
    """Read the times of micro-batches by bucket name from the file of `cost.measured`; empty if `path` is None.

    The file may lack some of the recipe's buckets (`names`) and have others, but not lack all.
    """
    if path is None:
        return {}
    try:
        values = user_files.read_json(Path(path))
    except OSError as error:
        raise _bad(path, f"it cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise _bad(path, f"it is not JSON ({error})") from error
    values = values.get("costs_ms", values) if isinstance(values, dict) else values  # of `reelworks tune`
    if not isinstance(values, dict):
        raise _bad(path, "it is not a JSON object")
    found = {}
    for name, value in values.items():
        each = value if isinstance(value, dict) else {"per_batch": 0.0, "per_clip": value}
        is_right = each.keys() == {"per_batch", "per_clip"} and any(each.values())
        if not (is_right and all(type(n) in (int, float) and 0 <= n < math.inf for n in each.values())):
            raise _bad(path, f'"{name}" is {value!r}, not a positive number of milliseconds')
        found[name] = BatchTime(**each)
    if values.keys().isdisjoint(names):
        raise _bad(path, f"it names none of the buckets ({', '.join(names[:3])}, ...)")
    return found


def is_of_one_rank(path: str | None) -> bool:
    """Whether a file that `read_measured` reads has times of micro-batches on one rank, as `reelworks tune` measures them."""
    return path is not None and "trials" in user_files.read_json(Path(path))


def _bad(path: str, problem: str) -> UserError:
    return UserError(
        problem,
        code="cost-table-invalid",
        field="cost.measured",
        value=path,
        remedy="write it again with `reelworks report RUN --costs FILE` or `reelworks tune`, or remove the key",
    )
