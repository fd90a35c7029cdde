"""Summarise and forecast plans as one JSON value, from which terminal output and report are built."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelworks.analysis import compiled_graphs, data_advice, discarded, epoch_stats, plan_fixes, rejections
from reelworks.analysis.epoch_stats import Figures, figures
from reelworks.buckets.assign import Reason
from reelworks.buckets.config import BucketsConfig
from reelworks.core import toml_none, units
from reelworks.core.errors import UserError
from reelworks.data.left_out import Rejection, by_reason
from reelworks.data.position import begin_epoch
from reelworks.models import sequence_limits
from reelworks.recipe import diff
from reelworks.recipe.dataset import RecipeData
from reelworks.recipe.recipe import Recipe
from reelworks.schedule.plan import EpochPlan, PlanSpec, plan_epoch

Json = dict[str, Any]
_LINES_SHOWN = 20


def summarise(data: RecipeData, spec: PlanSpec, plan: EpochPlan, *, world: int, epoch: int = 0) -> Json:
    """Summarise an epoch on `world` ranks: buckets, reasons with their first files, steps, imbalance, padding."""
    left_out = by_reason(*data.assignment(epoch))
    rows = data.rows
    return _numbers(data, spec, plan, left_out, world) | {
        "reasons": rejections.named(data, left_out),
        "exclude_list_unmatched": data.exclude_list.unmatched(rows),
        "mirrored_sides": data_advice.mirrored_sides(data.recipe.dataset, rows),
        "without_effect": without_effect(data.recipe),
        "shared_files": data_advice.shared_files(data.recipe.dataset, rows),
        "graphs": compiled_graphs.of_plan(data, plan),
        "chosen_buckets": None if data.chosen is None else data.chosen.to_json(),
        **discarded.losses(data, plan),
    }


def _numbers(data: RecipeData, spec: PlanSpec, plan: EpochPlan, left_out: list[Rejection], world: int) -> Json:
    """Return the part of `summarise` for which no text of the catalog is read."""
    buckets = _buckets(data, plan, spec)
    places = len(plan.uid)
    rows = data.rows
    return {
        "catalog": {
            "clips": len(rows),
            "videos": int((~rows.is_image & rows.readable).sum()),
            "images": int((rows.is_image & rows.readable).sum()),
            "bad": int((~rows.readable).sum()),
        },
        "planned": plan.planned,
        "repeated": plan.repeated,
        "held_out": sum(len(r.row) for r in left_out if r.reason == Reason.HELD_OUT),
        "left_out": rejections.counts(data, left_out),
        "buckets": [bucket for bucket in buckets if bucket["clips"]],
        "empty_buckets": [bucket["name"] for bucket in buckets if not bucket["clips"]],
        "steps_per_epoch": plan.steps,
        "micro_batches": len(plan.offsets) - 1,
        "incomplete_batch": spec.incomplete_batch,
        "incomplete": sum(int(bucket["incomplete"]) for bucket in buckets),
        "micro_batches_per_step": spec.micro_batches_per_step,
        "same_bucket_run": spec.same_bucket_run,
        "world": world,
        "imbalance": plan.waste(spec, world),
        "padding": 1 - int(plan.real.sum()) / places if places else 0.0,
        "rows_not_full": int((plan.rows < 0).any(axis=1).sum()),
    }


def _buckets(data: RecipeData, plan: EpochPlan, spec: PlanSpec) -> list[Json]:
    """Return statistics of every bucket, empty ones included."""
    table, n = data.table, len(data.table.buckets)
    bucket, _ = epoch_stats.micro_batches(plan)
    clips = np.bincount(plan.bucket[plan.is_first_use], minlength=n).tolist()
    incomplete = np.bincount(bucket[plan.own_clips < table.batch_sizes()[bucket]], minlength=n).tolist()
    batches = np.bincount(bucket, minlength=n).tolist()
    return [
        {
            "name": b.name,
            "num_frames": b.shape.num_frames,
            "height": b.shape.height,
            "width": b.shape.width,
            "batch_size": b.batch_size,
            "global_batch": b.batch_size * spec.micro_batches_per_step,
            "keep_prob": table.entries[b.entry].keep_prob,
            "clips": clips[i],
            "micro_batches": batches[i],
            "incomplete": incomplete[i],
            "tokens_per_clip": b.tokens,
        }
        for i, b in enumerate(table.buckets)
    ]


def warnings(summary: Json) -> list[str]:
    """Return the warnings of a summary, to print before training."""
    unmatched = summary.get("exclude_list_unmatched", [])
    lines = [f"exclude_file names {line}, which is no clip of the recipe" for line in unmatched[:_LINES_SHOWN]]
    lines += summary.get("without_effect", [])
    more = len(unmatched) - _LINES_SHOWN
    lines += [f"exclude_file has {more} more lines that name no clip"] if more > 0 else []
    for overlap in summary.get("shared_files", []):
        outer, inner = overlap["datasets"]
        count = units.plural(overlap["files"], "file")
        lines.append(
            f"the datasets {outer} and {inner} share {count}, which an epoch trains twice; "
            "remove one of the datasets, or give it a name if this is intended"
        )
    for mirrored in summary.get("mirrored_sides", []):
        count = units.plural(mirrored["clips"], "caption") + (" names" if mirrored["clips"] == 1 else " name")
        lines.append(
            f"the dataset {mirrored['dataset']} has flip, but {count} left or right, which would be wrong of a "
            "mirrored clip; set flip = 0 there, or keep these clips in a dataset of their own"
        )
    return lines


def without_effect(recipe: Recipe) -> list[str]:
    """Return a line for each limit of proposed buckets that a recipe with buckets of its own sets."""
    usual = BucketsConfig()
    limits = [
        name for name in ("max_tokens", "max_batch_size") if getattr(recipe.buckets, name) != getattr(usual, name)
    ]
    if recipe.buckets.entries != "recipe":
        return []
    return [
        f"buckets.{name} has no effect beside [[bucket]] entries, which say their sizes and batch sizes; leave it out, or "
        'set buckets.entries = "auto"'
        for name in limits
    ]


FILES_NAMED = 20
_WORLDS = (8, 64, 512, 4096)


def look_ahead(data: RecipeData, spec: PlanSpec, *, world: int, epochs: int) -> tuple[Json, Figures]:
    """Plan so many epochs, at least one, from the first on, one at a time.

    Returns:
        `epochs`, `sum`, `shares`, `datasets`, `course` (of the first epoch) and `never_seen` as JSON; and the total.
    """
    dataset = epoch_stats.dataset_of_rows(data)
    by_bucket = np.zeros((4, len(data.table.buckets)))
    by_dataset = np.zeros((3, len(data.recipe.dataset)))
    seen = np.zeros(len(data.rows), dtype=np.bool_)
    each: list[Figures] = []
    for epoch in range(epochs):
        plan = data.plan(spec, epoch)
        row = data.rows_at(plan.ordinal)
        each.append(figures(plan, spec, data.table.tokens(), world))
        by_bucket += epoch_stats.of_buckets(data, plan, spec)
        by_dataset += epoch_stats.of_datasets(data, plan, spec, dataset[row])
        seen[row] = True
        if epoch == 0:
            groups = epoch_stats.groups(data, by_bucket)
            course = epoch_stats.course(plan, groups)
    total = sum(each, Figures())
    reason, trainable = _reasons(data)
    trainable_clips = np.bincount(dataset[trainable], minlength=by_dataset.shape[1])
    value = {
        "epochs": [{"epoch": epoch} | f.to_json() for epoch, f in enumerate(each)],
        "sum": total.to_json(),
        "shares": epoch_stats.bucket_shares(data, by_bucket, groups),
        "datasets": epoch_stats.dataset_shares(data, by_dataset, trainable_clips),
        "course": course,
        "never_seen": _never_seen(data, seen, reason),
    }
    return value, total


def smaller_worlds(data: RecipeData, spec_for: Callable[[int], PlanSpec], world: int) -> list[Json]:
    """Return figures of the first epoch on 8, 64, ... ranks, below `world`, as far as the recipe allows so many."""
    worlds = [size for size in _WORLDS if size < world]
    if not worlds:
        return []
    values, entries = [], data.entries(0)
    for size in worlds:
        try:
            spec = spec_for(size)
        except UserError:  # the recipe's same_bucket_run does not allow this number
            continue
        plan = plan_epoch(entries, spec, 0)
        values.append({"world": size} | figures(plan, spec, data.table.tokens(), size).to_json())
    return values


def _reasons(data: RecipeData) -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
    """Return why the first epoch leaves out each row, and which rows any epoch can draw."""
    assignment, row = data.assignment(0)
    reason, trainable = np.zeros(len(data.rows), dtype=np.int8), np.zeros(len(data.rows), dtype=np.bool_)
    reason[row] = assignment.reason
    trainable[row[np.isin(assignment.reason, (Reason.NONE, Reason.NOT_DRAWN))]] = True
    return reason, trainable


def _never_seen(data: RecipeData, seen: NDArray[np.bool_], reason: NDArray[np.int8]) -> Json:
    """Return the clips that no epoch trains, by reason, with the first paths; held-out clips are left out."""
    lost = ~seen & (reason != Reason.HELD_OUT)
    by_reason = {}
    for kind in Reason:
        where = np.flatnonzero(lost & (reason == kind))
        if len(where):
            paths = sorted(data.rows.labels(where[:FILES_NAMED]))
            by_reason[kind.label] = {"clips": len(where), "files": paths}
    return {"clips": int(lost.sum()), "by_reason": by_reason}


_MOST_MICRO_BATCHES = 1_000_000  # per step: a row of the plan has an element for each


def step_shape(recipe: Recipe, world: int) -> tuple[int, int]:
    """Return the micro-batches per step and the `same_bucket_run` of a run that begins with `world` ranks."""
    train = recipe.train
    if train.micro_batches_per_step is not None and train.micro_batches_per_step < world:
        raise too_many_ranks(train.micro_batches_per_step, world)
    width = train.same_bucket_run or world
    steps = train.micro_batches_per_step or world * train.gradient_accumulation_steps
    if steps > _MOST_MICRO_BATCHES:
        raise UserError(
            f"a step can have at most {_MOST_MICRO_BATCHES} micro-batches",
            code="unknown-micro-batch-count",
            field="train.micro_batches_per_step",
            value=steps,
            remedy="lower it; if the recipe does not set it, it is GPUs × train.gradient_accumulation_steps",
        )
    if steps % width:
        raise UserError(
            f"same_bucket_run must divide micro_batches_per_step, which is {steps}",
            code="run-length-must-divide",
            field="train.same_bucket_run",
            value=width,
            remedy=f"set train.same_bucket_run to a divisor of {steps}",
        )
    return steps, width


def too_many_ranks(micro_batches_per_step: int, world: int) -> UserError:
    """Return the error for a number of ranks of which some would have no micro-batch."""
    return UserError(
        f"a step has {micro_batches_per_step} micro-batches, so some of {world} ranks would have nothing to do",
        code="too-many-ranks",
        field="train.micro_batches_per_step",
        value=micro_batches_per_step,
        remedy=f"use at most {micro_batches_per_step} ranks, or raise train.micro_batches_per_step (the rest of the "
        "epoch is then planned anew)",
    )


def forecast(recipe: Recipe, world: int, epochs: int = 1) -> Json:
    """Summarise the first epoch of a run on `world` GPUs, and look so many epochs ahead; the catalog must exist.

    Returns:
        The results of `summarise` and `look_ahead`, with `proposals` if imbalance or padding is above
        `plan_fixes.WASTE_ALLOWED`, `fewer_ranks` if no proposal suffices, and `max_steps_to_set` if the learning rate
        decays without an end; all three are None otherwise.

    Raises:
        UserError: GPUs cannot be divided into sequence groups, or these cannot share the tokens of a bucket.
    """
    degree, world = recipe.parallel.sequence_degree, recipe.parallel.data_ranks(world)
    data = RecipeData.open(recipe)
    sequence_limits.require_buckets(recipe.model, data.table, degree)
    spec = _spec(data, world)
    position = begin_epoch(data, spec, epoch=0)
    with ThreadPoolExecutor(1) as thread:  # numpy computes without Python's lock
        ahead = thread.submit(look_ahead, data, spec, world=world, epochs=epochs)
        summary = summarise(data, spec, position.plan, world=world)
        further, total = ahead.result()
    advised = _advice(data, spec, total, world, epochs)
    train = recipe.train
    max_steps = (train.max_epochs or 0) * position.plan.steps if train.lacks_end else None
    smaller = smaller_worlds(data, partial(_spec, data), world)
    for value in (summary, *smaller):
        value["world"] *= degree
    return (
        summary
        | further
        | {"smaller_worlds": smaller, "loss_reduction": train.loss_reduction, "max_steps_to_set": max_steps}
        | advised
    )


def outline(data: RecipeData, world: int) -> Json:
    """Return the part of `forecast` that takes a moment: the first epoch's numbers, without names of clips.

    Returns:
        Of `summarise` what needs no text of the catalog, and `sum` and `shares`.
    """
    degree, ranks = data.recipe.parallel.sequence_degree, data.recipe.parallel.data_ranks(world)
    sequence_limits.require_buckets(data.recipe.model, data.table, degree)
    spec = _spec(data, ranks)
    plan = begin_epoch(data, spec, epoch=0).plan
    left_out = by_reason(*data.assignment(0))
    by_bucket = epoch_stats.of_buckets(data, plan, spec)
    return _numbers(data, spec, plan, left_out, ranks) | {
        "world": world,
        "sum": figures(plan, spec, data.table.tokens(), ranks).to_json(),
        "shares": epoch_stats.bucket_shares(data, by_bucket, epoch_stats.groups(data, by_bucket)),
    }


def advice(data: RecipeData, world: int) -> Json:
    """Return `proposals` and `fewer_ranks` of a forecast of one epoch, for a dataset that is open."""
    ranks = data.recipe.parallel.data_ranks(world)
    spec = _spec(data, ranks)
    total = figures(data.plan(spec, 0), spec, data.table.tokens(), ranks)
    return _advice(data, spec, total, ranks, 1)


def _advice(data: RecipeData, spec: PlanSpec, total: Figures, ranks: int, epochs: int) -> Json:
    proposals = fewer = None
    if plan_fixes.too_much(total):
        proposals = plan_fixes.proposals(data, spec, total, world=ranks, epochs=epochs)
        if not any(proposal["suffices"] for proposal in proposals):
            fewer = plan_fixes.fewer_ranks(data, partial(_spec, data), world=ranks, epochs=epochs)
    if fewer is not None:
        fewer["world"] *= data.recipe.parallel.sequence_degree
    return {"proposals": proposals, "fewer_ranks": fewer}


def _spec(data: RecipeData, world: int) -> PlanSpec:
    return data.plan_spec(*step_shape(data.recipe, world))


FIGURES = ("steps", "clips", "tokens", "micro_batches", "incomplete", "imbalance", "padding")


def compare(before: tuple[Recipe, Json], after: tuple[Recipe, Json]) -> Json:
    """Compare two recipes by their forecasts for the same numbers of ranks and epochs.

    Returns:
        Changed `keys`; `figures` over all epochs; clips by bucket (`buckets`) over all epochs; and clips by reason
        (`reasons`) in the first epoch. Each as `key` or `name`, `a`, `b`; a missing count is 0.
    """
    (recipe_a, a), (recipe_b, b) = before, after
    changed = diff.changes(toml_none.to_toml(recipe_a), toml_none.to_toml(recipe_b))
    return {
        "world": a["world"],
        "epochs": len(a["epochs"]),
        "keys": [{"key": change.key, "a": change.before, "b": change.after} for change in changed],
        "figures": [{"name": name, "a": a["sum"][name], "b": b["sum"][name]} for name in FIGURES],
        "buckets": _side_by_side(*({share["name"]: share["clips"] for share in f["shares"]} for f in (a, b))),
        "reasons": _side_by_side(*({k: one["clips"] for k, one in f["left_out"].items()} for f in (a, b))),
    }


def _side_by_side(a: dict[str, int], b: dict[str, int]) -> list[Json]:
    return [{"name": name, "a": a.get(name, 0), "b": b.get(name, 0)} for name in a | b]
