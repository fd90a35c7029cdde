"""All that shapes a recipe's plans besides their entries, as numbers and one digest."""

from __future__ import annotations

from collections.abc import Mapping

from reelworks.buckets import merge
from reelworks.buckets.table import BucketTable
from reelworks.catalog import companions
from reelworks.core import digests
from reelworks.recipe.recipe import Recipe
from reelworks.schedule import cost
from reelworks.schedule.plan import PlanSpec

_HOW_FOUND = {"entries", "max_tokens", "max_batch_size"}  # of buckets; what they found counts
# What companions leave out, the catalog's digest tells.
_NOT_OF_A_PLAN = {"path", "root", "caption", *companions.KINDS}


def of(
    recipe: Recipe,
    table: BucketTable,
    *,
    micro_batches_per_step: int,
    slot_width: int,
    quarantine: str,
    measured_ms: Mapping[str, float],
) -> PlanSpec:
    """What shapes the plans of a recipe.

    Args:
        recipe: The recipe.
        table: Its buckets.
        micro_batches_per_step: Of all ranks together.
        slot_width: Micro-batches of a slot.
        quarantine: Digest of its quarantine.
        measured_ms: Milliseconds per clip, by bucket, where they were measured.
    """
    names = [bucket.name for bucket in table.buckets]
    merges = recipe.buckets.incomplete_batch == "merge"
    return PlanSpec(
        seed=recipe.seed,
        micro_batches_per_step=micro_batches_per_step,
        slot_width=slot_width,
        incomplete_batch=recipe.buckets.incomplete_batch,
        batch_sizes=tuple(int(n) for n in table.batch_sizes()),
        costs_us=cost.costs_us(names, table.tokens(), recipe.cost, measured_ms),
        buckets_digest=_digest(recipe, table, quarantine),
        merge_to=tuple(int(n) for n in merge.targets(table)) if merges else (),
        window_clips=recipe.data.locality_clips if recipe.data.locality else 0,
    )


def _digest(recipe: Recipe, table: BucketTable, quarantine: str) -> str:
    return digests.digest_json(
        [
            [[b.name, *b.shape.__dict__.values(), b.batch_size] for b in table.buckets],
            recipe.buckets.model_dump(exclude=_HOW_FOUND),
            [entry.model_dump() for entry in recipe.bucket],
            recipe.data.frame_interval,
            recipe.data.fps,
            [dataset.model_dump(exclude=_NOT_OF_A_PLAN) for dataset in recipe.dataset],
            recipe.data.short_clips,
            recipe.validation.split,
            recipe.validation.group,
            recipe.data.locality,
            quarantine,
        ]
    )
