"""What a plan will do, as one JSON value; the terminal, the report and later a page draw the same one."""

from __future__ import annotations

from typing import Any

import numpy as np

from reelworks.buckets.assign import Reason
from reelworks.prepare import figures, losses, reasons, shared
from reelworks.prepare.data import RecipeData
from reelworks.schedule import ranks
from reelworks.schedule.plan import EpochPlan, PlanSpec

Json = dict[str, Any]
_LINES_SHOWN = 20


def summarise(data: RecipeData, spec: PlanSpec, plan: EpochPlan, *, world: int, epoch: int = 0) -> Json:
    """Summarise an epoch: buckets, reasons with their first files, steps, imbalance, padding.

    Args:
        data: The recipe's data.
        spec: What shaped the plan.
        plan: The epoch's plan.
        world: Ranks for which imbalance and global batches are computed.
        epoch: Which epoch the assignment is for.
    """
    assignment, row = data.assignment(epoch)
    left_out = reasons.left_out(assignment, row)
    buckets = _buckets(data, plan, spec)
    places = len(plan.uid)
    micro_batches = len(plan.offsets) - 1
    return {
        "catalog": {
            "clips": len(data.rows),
            "videos": int((~data.rows.is_image & data.rows.readable).sum()),
            "images": int((data.rows.is_image & data.rows.readable).sum()),
            "bad": int((~data.rows.readable).sum()),
        },
        "planned": plan.planned,
        "repeated": plan.repeated,
        "held_out": sum(len(one.row) for one in left_out if one.reason == Reason.HELD_OUT),
        "left_out": reasons.counts(data, left_out),
        "reasons": reasons.named(data, left_out),
        "quarantine_unmatched": data.quarantine.unmatched(data.rows),
        "shared_files": shared.files(data.recipe.dataset, data.rows),
        "buckets": [bucket for bucket in buckets if bucket["clips"]],
        "empty_buckets": [bucket["name"] for bucket in buckets if not bucket["clips"]],
        "steps_per_epoch": plan.steps,
        "micro_batches": micro_batches,
        "incomplete_batch": spec.incomplete_batch,
        "incomplete": sum(int(bucket["incomplete"]) for bucket in buckets),
        "micro_batches_per_step": spec.micro_batches_per_step,
        "slot_width": spec.slot_width,
        "world": world,
        "imbalance": ranks.waste(plan, spec, world),
        "padding": 1 - int(plan.real.sum()) / places if places else 0.0,
        "rows_not_full": int((plan.rows < 0).any(axis=1).sum()),
        "chosen_buckets": None if data.chosen is None else data.chosen.to_json(),
    } | losses.losses(data, plan)


def _buckets(data: RecipeData, plan: EpochPlan, spec: PlanSpec) -> list[Json]:
    """Every bucket, those without a clip too."""
    table, n = data.table, len(data.table.buckets)
    bucket, _ = figures.micro_batches(plan)
    clips = np.bincount(plan.bucket[plan.first], minlength=n).tolist()
    incomplete = np.bincount(bucket[plan.own_clips() < table.batch_sizes()[bucket]], minlength=n).tolist()
    batches = np.bincount(bucket, minlength=n).tolist()
    return [
        {
            "name": one.name,
            "num_frames": one.shape.num_frames,
            "height": one.shape.height,
            "width": one.shape.width,
            "batch_size": one.batch_size,
            "global_batch": one.batch_size * spec.micro_batches_per_step,
            "keep_prob": table.entries[one.entry].keep_prob,
            "clips": clips[i],
            "micro_batches": batches[i],
            "incomplete": incomplete[i],
            "tokens_per_clip": one.tokens,
        }
        for i, one in enumerate(table.buckets)
    ]


def warnings(told: Json) -> list[str]:
    """What a person should look at before training, as lines."""
    unmatched = told["quarantine_unmatched"]
    lines = [
        f"warning: quarantine names {line}, which is no clip of the recipe"
        for line in unmatched[:_LINES_SHOWN]
    ]
    more = len(unmatched) - _LINES_SHOWN
    lines += [f"warning: and {more} more lines of it that name no clip"] if more > 0 else []
    for one in told["shared_files"]:
        outer, inner = one["datasets"]
        count = "1 file" if one["files"] == 1 else f"{one['files']} files"
        lines.append(
            f"warning: the datasets {outer} and {inner} share {count}, which an epoch trains twice; "
            "leave one dataset out, or give it a name if that is meant"
        )
    return lines
