"""Find changes of a recipe that make its plan waste less time; each is planned to see its effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from reelworks.analysis.epoch_stats import Figures, figures
from reelworks.buckets import merge_targets
from reelworks.core.errors import UserError
from reelworks.recipe.dataset import RecipeData
from reelworks.recipe.recipe import Recipe
from reelworks.schedule.plan import PlanSpec, plan_epoch

Json = dict[str, Any]
WASTE_ALLOWED = 0.10
# Smaller micro-batches are fuller and more even, and slower per clip: the largest that cures is proposed.
_SCALES = (1.0, 0.5, 0.25, 0.125)


@dataclass(frozen=True)
class PlanFix:
    """A change to try.

    Attributes:
        kind: Of each kind one is proposed.
        incomplete_batch: The recipe's, or another.
        batch_sizes: Per entry of the table, where they change.
    """

    kind: str
    incomplete_batch: str
    batch_sizes: dict[int, int]


def too_much(total: Figures) -> bool:
    """True if imbalance or padding is more than a person should put up with."""
    return max(total.imbalance, total.padding) > WASTE_ALLOWED


def proposals(data: RecipeData, spec: PlanSpec, total: Figures, *, world: int, epochs: int) -> list[Json]:
    """Cures that make a plan better, those that suffice first; of each kind the mildest or else the best.

    Args:
        data: The recipe's data.
        spec: What shapes its plans.
        total: What they come to.
        world: Ranks.
        epochs: Epochs that `total` sums up.
    """
    cures = list(_cures(data, spec))
    found = _totals(data, spec, cures, world, epochs)
    chosen: dict[str, int] = {}
    for i, cure in enumerate(cures):
        former = chosen.get(cure.kind)
        better = former is None or (too_much(found[former]) and found[i].waste < found[former].waste)
        if better and found[i].waste < total.waste:
            chosen[cure.kind] = i
    _drop_needless(chosen, found)
    order = sorted(chosen.values(), key=lambda i: (too_much(found[i]), len(cures[i].batch_sizes)))
    return [_told(data, cures[i], found[i]) for i in order]


def fewer_ranks(
    data: RecipeData, spec_for: Callable[[int], PlanSpec], *, world: int, epochs: int
) -> Json | None:
    """The most ranks, of halves of `world`, that do not wait too long; None if none do.

    Args:
        data: The recipe's data.
        spec_for: What shapes the plans of a run that so many ranks begin.
        world: Ranks that wait too long.
        epochs: Epochs to sum up.
    """
    while (world := world // 2) >= 1:
        try:
            spec = spec_for(world)
        except UserError:  # the recipe's slot width or micro-batches per step do not suit so many
            continue
        total = Figures()
        for epoch in range(epochs):
            total += figures(data.plan(spec, epoch), spec, data.table.tokens(), world)
        if not too_much(total):
            return {"world": world} | total.to_json()
    return None


def _drop_needless(chosen: dict[str, int], found: list[Figures]) -> None:
    """Take back what changes two things where one of them does."""
    others = [found[i] for kind, i in chosen.items() if kind != "both"]
    both = chosen.get("both")
    if both is None:
        return
    if any(not too_much(one) or one.waste <= found[both].waste for one in others):
        del chosen["both"]


def _cures(data: RecipeData, spec: PlanSpec) -> Iterator[PlanFix]:
    """Changes from mild to strong, kind by kind."""
    now = spec.incomplete_batch
    if now == "pad":
        yield PlanFix("partial", "partial", {})
    if now != "merge":
        yield PlanFix("merge", "merge", {})
    sizes = list(_batch_sizes(data, spec))
    yield from (PlanFix("batch_size", now, changed) for changed in sizes)
    if now != "merge":
        yield from (PlanFix("both", "merge", changed) for changed in sizes)


def _batch_sizes(data: RecipeData, spec: PlanSpec) -> Iterator[dict[int, int]]:
    """Batch sizes at which a full micro-batch of every entry costs about the same, the largest first."""
    inside = np.bincount(data.entries(0).bucket, minlength=len(data.table.buckets))
    costs = np.array(spec.costs_us, dtype=np.float64)
    sizes = np.array(spec.batch_sizes, dtype=np.float64)
    even = float((inside * costs).sum() / (inside / np.maximum(sizes, 1)).sum())  # as it is in the mean
    tried = []
    for scale in _SCALES:
        changed = {}
        for index, entry in enumerate(data.table.entries):
            mine = [b for b in data.table.of_entry(index) if inside[b]]
            if not mine:
                continue
            size = max(1, int(even * scale / np.average(costs[mine], weights=inside[mine])))
            if size != entry.batch_size:
                changed[index] = size
        if changed and changed not in tried:
            tried.append(changed)
            yield changed


def _totals(data: RecipeData, spec: PlanSpec, cures: list[PlanFix], world: int, epochs: int) -> list[Figures]:
    """Plan the same clips with each fix and sum up."""
    specs = [_spec(data, spec, cure) for cure in cures]
    totals = [Figures()] * len(cures)
    for epoch in range(epochs):
        entries = data.entries(epoch)
        for i, changed in enumerate(specs):
            plan = plan_epoch(entries, changed, epoch)
            totals[i] += figures(plan, changed, data.table.tokens(), world)
    return totals


def _spec(data: RecipeData, spec: PlanSpec, cure: PlanFix) -> PlanSpec:
    sizes = tuple(
        cure.batch_sizes.get(bucket.entry, size)
        for bucket, size in zip(data.table.buckets, spec.batch_sizes, strict=True)
    )
    merges = cure.incomplete_batch == "merge"
    return replace(
        spec,
        incomplete_batch=cure.incomplete_batch,
        batch_sizes=sizes,
        merge_to=tuple(int(n) for n in merge_targets.targets(data.table)) if merges else (),
    )


def _told(data: RecipeData, cure: PlanFix, total: Figures) -> Json:
    entries = data.table.entries
    return {
        "incomplete_batch": cure.incomplete_batch,
        "batch_sizes": [
            {"entry": str(entries[i]), "from": entries[i].batch_size, "to": size}
            for i, size in cure.batch_sizes.items()
        ],
        "set": _settings(data, cure),
        "suffices": not too_much(total),
    } | total.to_json()


def _settings(data: RecipeData, cure: PlanFix) -> list[str]:
    """The cure as it is typed after `--set`, without batch sizes of entries that stand elsewhere."""
    recipe = data.recipe
    settings = []
    if cure.incomplete_batch != recipe.buckets.incomplete_batch:
        settings.append(f"buckets.incomplete_batch={cure.incomplete_batch}")
    if data.chosen is not None:  # entries that stand in no file that is read next
        return settings
    new = {
        (data.table.entries[i].resolution, data.table.entries[i].num_frames): size
        for i, size in cure.batch_sizes.items()
    }
    return settings + _bucket_settings(recipe, new)


def _bucket_settings(recipe: Recipe, new: dict[tuple[str, int], int]) -> list[str]:
    settings = []
    for index, entry in enumerate(recipe.bucket):
        now = [size or recipe.buckets.batch_size for size in entry.batch_sizes()]
        then = [
            new.get((entry.resolution, frames), size)
            for frames, size in zip(entry.frames(), now, strict=True)
        ]
        if then != now:
            value = str(then[0]) if not isinstance(entry.num_frames, list) else str(then).replace(" ", "")
            settings.append(f"bucket.{index}.batch_size={value}")
    return settings
