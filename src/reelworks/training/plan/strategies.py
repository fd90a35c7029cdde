"""Compare a plan with two that know less: one batch size for all buckets, and equal tokens in each micro-batch.

Both keep within the memory of the plan's largest micro-batch, and give a rank's micro-batches of a step no common bucket, as
trainers do whose ranks draw buckets by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from reelworks.core import blocks
from reelworks.core.arrays import I64
from reelworks.data.buckets import tuned
from reelworks.data.loader.position import DataPosition
from reelworks.data.schedule import cost
from reelworks.data.schedule.plan import PlanSpec, Samples, plan_epoch
from reelworks.training.plan import epoch_stats
from reelworks.training.plan.epoch_stats import Figures
from reelworks.training.recipe.dataset import RecipeData


@dataclass(frozen=True)
class StrategyFigures:
    """An epoch of one strategy.

    Attributes:
        strategy: "fixed" batch size, "equal_tokens" or "planned".
        imbalance: Share of time in which ranks wait for the slowest, from 0 to 1.
        peak_tokens: Latent tokens of a GPU in the largest micro-batch, which decide its memory.
        peak_bytes: Memory of a GPU with it, between the measured ones of `buckets.tuned`; None without that file, or if it
            has none as large.
        memory_share: Mean of the micro-batches' tokens over the largest number of all strategies.
        tokens_per_second: Tokens that all ranks train in a second of planned time; None without `cost.measured`.
        speedup: Tokens in the same time, as a multiple of those of the fixed batch size.
    """

    strategy: str
    steps: int
    imbalance: float
    peak_tokens: int
    peak_bytes: int | None
    memory_share: float
    tokens_per_second: float | None
    speedup: float


def compare(
    data: RecipeData, spec: PlanSpec, first: DataPosition, world: int, tuned_file: str | None = None
) -> list[StrategyFigures]:
    """Compare the plan of the `first` epoch on `world` sequence groups, or ranks without them, with the two that know less.

    `tuned_file` is that of `reelworks tune`, which has measured memory.
    """
    measured = {} if tuned_file is None else tuned.read_peak_bytes(tuned_file)
    tokens, entries = data.table.tokens(), data.narrow_entries(first.epoch)
    # A sequence group shares the clips of a column, and so their tokens and the time that they take.
    group = data.recipe.parallel.group_size
    found: dict[str, Figures] = {}
    held: dict[str, tuple[int, float]] = {}
    for name, one in {**simple(spec, entries, tokens), "planned": spec}.items():
        made = first.plan if name == "planned" else plan_epoch(entries, one, first.epoch)
        found[name] = epoch_stats.figures(made, one, tokens, world)
        sizes = -(-np.diff(made.offsets) * tokens[made.micro_bucket] // group)
        held[name] = int(sizes.max()), float(sizes.mean())
        del made, sizes  # as large as the plan, or larger
    largest = max(most for most, _ in held.values())
    slowest = found["fixed"].tokens / found["fixed"].spent_us
    unit = cost.unit_seconds([b.name for b in data.table.buckets], data.measured_ms, spec)
    return [
        StrategyFigures(
            name,
            one.steps,
            one.imbalance,
            held[name][0],
            _peak_bytes(measured, held[name][0]),
            held[name][1] / largest,
            None if unit is None else one.tokens / (one.spent_us * unit),
            one.tokens / one.spent_us / slowest,
        )
        for name, one in found.items()
    ]


def simple(spec: PlanSpec, entries: Samples, tokens: I64, budget: int | None = None) -> dict[str, PlanSpec]:
    """Return the specs of the two strategies that know less.

    Args:
        spec: The plan to compare with.
        entries: Clips of an epoch, at least one.
        tokens: Latent tokens of one clip of each bucket.
        budget: The most tokens of a micro-batch; None for those of the largest of `spec`.
    """
    used = np.flatnonzero(blocks.counts(entries.bucket, len(tokens)))
    if budget is None:
        budget = int((np.array(spec.batch_sizes, dtype=np.int64) * tokens)[used].max())
    one_size = max(budget // int(tokens[used].max()), 1)
    sizes = {"fixed": [one_size] * len(tokens), "equal_tokens": np.maximum(budget // tokens, 1).tolist()}
    return {name: replace(spec, batch_sizes=tuple(each), same_bucket_run=1) for name, each in sizes.items()}


def _peak_bytes(measured: Mapping[int, int], tokens: int) -> int | None:
    """Return the memory of a micro-batch between those that were measured; it grows in proportion to tokens."""
    if not measured or tokens > max(measured):
        return None
    return round(float(np.interp(tokens, list(measured), list(measured.values()))))
