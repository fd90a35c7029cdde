"""Find changes of a recipe that make its plan waste less time, by planning with each of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from reelworks.core import blocks, results
from reelworks.data.loader.data_spec import merge_targets
from reelworks.data.schedule.plan import PlanSpec, plan_epoch
from reelworks.training.plan.epoch_stats import Figures, figures, one_by_one
from reelworks.training.recipe import stages
from reelworks.training.recipe.dataset import RecipeData

WASTE_ALLOWED = 0.10
# Smaller micro-batches are fuller and more balanced, but slower per clip: the largest that suffice are proposed.
_SCALES = (1.0, 0.5, 0.25, 0.125)


@dataclass(frozen=True)
class PlanFix:
    """A change to try; at most one of each kind is proposed. Batch sizes are by index of the bucket entry."""

    kind: str
    incomplete_batch: str
    batch_sizes: dict[int, int]


@dataclass(frozen=True)
class BatchSizeChange:
    """Another batch size of an entry of the bucket table."""

    entry: str
    from_: int
    to: int


@dataclass(frozen=True)
class ProposedChange:
    """A change of a recipe that makes its plan waste less, and the figures of the changed plan.

    Attributes:
        set_: The change as arguments of `--set`, without batch sizes of entries that the recipe does not list.
        suffices: Whether the waste is then allowed.
    """

    incomplete_batch: str
    batch_sizes: list[BatchSizeChange]
    set_: list[str]
    suffices: bool
    figures: Figures = field(metadata=results.INLINED)

    def __str__(self) -> str:
        """Return the change as options, but batch sizes that `--set` cannot change by the names of their entries."""
        options = " ".join(f"--set '{text}'" for text in self.set_)
        if any("bucket." in text for text in self.set_):
            return options
        sizes = [f"{size.entry}: batch size {size.to} (now {size.from_})" for size in self.batch_sizes]
        return ", ".join(filter(None, [options, *sizes]))


@dataclass(frozen=True)
class RanksFigures:
    """Figures of the plan of a run that begins with `world` GPUs."""

    world: int
    figures: Figures = field(metadata=results.INLINED)


def too_much(total: Figures) -> bool:
    """Return whether imbalance or padding is above `WASTE_ALLOWED`."""
    return max(total.imbalance, total.padding) > WASTE_ALLOWED


def proposals(data: RecipeData, spec: PlanSpec, total: Figures, *, world: int, epochs: range) -> list[ProposedChange]:
    """Return fixes that improve a plan, those that suffice first; of each kind the mildest that suffices, or the best.

    `total` has the figures of the recipe's plans of these epochs.
    """
    fixes = list(_fixes(data, spec, epochs[0]))
    specs = [_spec(data, spec, fix) for fix in fixes]
    totals = [Figures()] * len(fixes)
    for epoch in one_by_one(epochs):
        entries = data.narrow_entries(epoch)
        for i, changed in enumerate(specs):
            totals[i] += figures(plan_epoch(entries, changed, epoch), changed, data.table.tokens(), world)
    chosen: dict[str, int] = {}
    for i, fix in enumerate(fixes):
        former = chosen.get(fix.kind)
        better = former is None or (too_much(totals[former]) and totals[i].waste < totals[former].waste)
        # Small micro-batches may wait less and take longer.
        is_quick = totals[i].spent_us * total.clips <= total.spent_us * totals[i].clips
        if better and is_quick and totals[i].waste < total.waste:
            chosen[fix.kind] = i
    both = chosen.get("both")  # changes two settings; dropped if a change of one is as good
    others = [totals[i] for i in chosen.values() if i != both]
    if both is not None and any(not too_much(other) or other.waste <= totals[both].waste for other in others):
        del chosen["both"]
    order = sorted(chosen.values(), key=lambda i: (too_much(totals[i]), len(fixes[i].batch_sizes)))
    found, of_table = [], data.table.entries
    for fix, its in ((fixes[i], totals[i]) for i in order):
        sizes = [
            BatchSizeChange(str(of_table[at]), of_table[at].batch_size, size) for at, size in fix.batch_sizes.items()
        ]
        found.append(ProposedChange(fix.incomplete_batch, sizes, _settings(data, fix), not too_much(its), its))
    return found


def _fixes(data: RecipeData, spec: PlanSpec, epoch: int) -> Iterator[PlanFix]:
    """Yield changes kind by kind, from mild to strong."""
    now = spec.incomplete_batch
    if now == "pad":
        yield PlanFix("partial", "partial", {})
    if now != "merge":
        yield PlanFix("merge", "merge", {})
    sizes = list(_batch_sizes(data, spec, epoch))
    yield from (PlanFix("batch_size", now, changed) for changed in sizes)
    if now != "merge":
        yield from (PlanFix("both", "merge", changed) for changed in sizes)


def _batch_sizes(data: RecipeData, spec: PlanSpec, epoch: int) -> Iterator[dict[int, int]]:
    """Yield batch sizes at which a full micro-batch of every entry costs about the same, the largest first."""
    inside = blocks.counts(data.narrow_entries(epoch).bucket, len(data.table.buckets))
    costs = np.array(spec.costs_us, dtype=np.float64)
    fixed = spec.costs(np.arange(len(costs)), np.zeros(len(costs), dtype=np.int64))
    number = inside / np.maximum(np.array(spec.batch_sizes, dtype=np.float64), 1)
    even = float((inside * costs + number * fixed).sum() / number.sum())  # mean cost at present
    tried = []
    for scale in _SCALES:
        changed = {}
        for index, entry in enumerate(data.table.entries):
            mine = [b for b in data.table.of_entry(index) if inside[b]]
            if not mine:
                continue
            parts = data.table.buckets[mine[0]].parts
            left = even * scale - np.average(fixed[mine], weights=inside[mine])
            size = max(1, int(left / np.average(costs[mine], weights=inside[mine]) / parts))
            if size != entry.batch_size:
                changed[index] = size
        if changed and changed not in tried:
            tried.append(changed)
            yield changed


def _spec(data: RecipeData, spec: PlanSpec, fix: PlanFix) -> PlanSpec:
    buckets = data.table.buckets
    sizes = tuple(fix.batch_sizes.get(bucket.entry, bucket.batch_size) * bucket.parts for bucket in buckets)
    merge_to = merge_targets(data.table, fix.incomplete_batch)
    return replace(spec, incomplete_batch=fix.incomplete_batch, batch_sizes=sizes, merge_to=merge_to)


def _settings(data: RecipeData, fix: PlanFix) -> list[str]:
    """Return the fix as arguments of `--set`, without batch sizes of entries that the recipe does not list."""
    recipe = data.recipe
    settings = []
    if fix.incomplete_batch != recipe.buckets.incomplete_batch:
        settings.append(f"{stages.of_stage('buckets', data.stage.name)}.incomplete_batch={fix.incomplete_batch}")
    if data.chosen is not None:  # the entries were chosen automatically, so --set cannot name them
        return settings
    changed = ((data.table.entries[i], size) for i, size in fix.batch_sizes.items())
    new = {(entry.resolution, entry.num_frames): size for entry, size in changed}
    for index, entry in enumerate(recipe.bucket):
        now = [size or recipe.buckets.batch_size for size in entry.batch_sizes()]
        then = [new.get((entry.resolution, frames), size) for frames, size in zip(entry.frames(), now, strict=True)]
        if then != now:
            value = str(then[0]) if not isinstance(entry.num_frames, list) else str(then).replace(" ", "")
            settings.append(f"{stages.of_stage('bucket', data.stage.name)}.{index}.batch_size={value}")
    return settings
