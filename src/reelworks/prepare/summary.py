"""What a plan will do, as one JSON value; the terminal, the report and later a page draw the same one."""

from __future__ import annotations

from typing import Any

import numpy as np

from reelworks.buckets.assign import Reason
from reelworks.catalog import filters
from reelworks.prepare.data import RecipeData
from reelworks.schedule import plan as planning
from reelworks.schedule.plan import EpochPlan, PlanSpec

Json = dict[str, Any]


def summarise(data: RecipeData, spec: PlanSpec, plan: EpochPlan, *, world: int, epoch: int = 0) -> Json:
    """Summarise an epoch: buckets, reasons with file names, steps, imbalance, padding.

    Args:
        data: The recipe's data.
        spec: What shaped the plan.
        plan: The epoch's plan.
        world: Ranks for which imbalance and global batches are computed.
        epoch: Which epoch the assignment is for.
    """
    assignment, row = data.assignment(epoch)
    buckets = [_bucket(data, plan, index, spec) for index in range(len(data.table.buckets))]
    places = len(plan.uid)
    micro_batches = len(plan.offsets) - 1
    return {
        "catalog": {
            "clips": len(data.rows),
            "videos": int((~data.is_image & data.rows.readable).sum()),
            "images": int((data.is_image & data.rows.readable).sum()),
            "bad": int((~data.rows.readable).sum()),
        },
        "planned": plan.planned,
        "held_out": int((assignment.reason == Reason.HELD_OUT).sum()),
        "reasons": _reasons(data, assignment.reason, assignment.nearest, row),
        "quarantine_unmatched": data.quarantine.unmatched(data.rows),
        "buckets": [bucket for bucket in buckets if bucket["clips"]],
        "empty_buckets": [bucket["name"] for bucket in buckets if not bucket["clips"]],
        "steps_per_epoch": plan.steps,
        "micro_batches": micro_batches,
        "incomplete_batch": spec.incomplete_batch,
        "incomplete": sum(int(bucket["incomplete"]) for bucket in buckets),
        "micro_batches_per_step": spec.micro_batches_per_step,
        "slot_width": spec.slot_width,
        "world": world,
        "imbalance": planning.waste(plan, spec, world),
        "padding": 1 - plan.planned / places if places else 0.0,
        "rows_not_full": int((plan.rows < 0).any(axis=1).sum()),
    }


def _bucket(data: RecipeData, plan: EpochPlan, index: int, spec: PlanSpec) -> Json:
    bucket = data.table.buckets[index]
    entry = data.table.entries[bucket.entry]
    inside = plan.bucket == index
    micro = plan.bucket[plan.offsets[:-1]] == index
    real = (
        np.add.reduceat(plan.real.astype(np.int64), plan.offsets[:-1])
        if len(plan.offsets) > 1
        else plan.offsets
    )
    incomplete = micro & (real[: len(micro)] < bucket.batch_size)
    return {
        "name": bucket.name,
        "num_frames": bucket.shape.num_frames,
        "height": bucket.shape.height,
        "width": bucket.shape.width,
        "batch_size": bucket.batch_size,
        "global_batch": bucket.batch_size * spec.micro_batches_per_step,
        "keep_prob": entry.keep_prob,
        "clips": int((inside & plan.real).sum()),
        "micro_batches": int(micro.sum()),
        "incomplete": int(incomplete.sum()),
        "tokens_per_clip": bucket.tokens,
    }


def _reasons(data: RecipeData, reason: Any, nearest: Any, row: Any) -> dict[str, list[dict[str, str]]]:
    """Files by reason and path, held-out ones included; every copy of a clip shares its file's line."""
    result: dict[str, list[dict[str, str]]] = {}
    for kind in Reason:
        if kind == Reason.NONE:
            continue
        where = np.flatnonzero(reason == kind)
        _, first = np.unique(row[where], return_index=True)
        if len(first):
            found = [_explain(data, kind, int(row[i]), int(nearest[i])) for i in where[first]]
            result[kind.label] = sorted(found, key=lambda file: file["path"])
    return result


def _explain(data: RecipeData, kind: Reason, row: int, nearest: int) -> dict[str, str]:
    rows = data.rows
    detail = ""
    if kind == Reason.UNREADABLE:
        detail = str(rows.error[row].as_py())
    elif kind == Reason.QUARANTINED:
        detail = f"named in {data.recipe.quarantine}"
    elif kind == Reason.FILTERED:
        dataset = rows.dataset[row].as_py()
        text = next(d.filter for d in data.recipe.dataset if d.filter and d.dataset_name == dataset)
        found = filters.values(rows, row, text)
        detail = f"{text}; it has " + ", ".join(f"{name} {_short(value)}" for name, value in found.items())
    elif kind == Reason.NO_CAPTION:
        detail = "no caption file" if rows.caption[row].as_py() is None else "the caption is empty"
    elif kind in (Reason.TOO_SHORT, Reason.TOO_SMALL, Reason.NO_BUCKET):
        detail = f"{rows.num_frames[row]} frames of {rows.height[row]} × {rows.width[row]}"
        if nearest >= 0:
            detail += f"; nearest entry: {data.table.entries[nearest]}"
    return {"path": f"{rows.dataset[row].as_py()}/{rows.path[row].as_py()}", "detail": detail}


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else repr(value)
