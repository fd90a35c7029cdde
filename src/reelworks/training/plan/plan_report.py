"""Summarise the plan of an epoch, as values from which terminal output, report and page are built."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter

from reelworks.core import blocks, results, units, user_files
from reelworks.data.buckets.assign import Reason
from reelworks.data.buckets.entry import Recomputation
from reelworks.data.loader import decode_requests
from reelworks.data.loader.left_out import Rejection, by_reason
from reelworks.data.run import history
from reelworks.data.run.folder import RunFolder
from reelworks.data.schedule.cursor import StageStart
from reelworks.data.schedule.plan import EpochPlan, PlanSpec
from reelworks.training.loop.config import TrainConfig
from reelworks.training.plan import compiled_graphs, data_advice, discarded, idle_keys, rejections
from reelworks.training.plan.compiled_graphs import PlannedGraphs
from reelworks.training.plan.data_advice import MirroredSides, SharedFiles
from reelworks.training.plan.discarded import Losses
from reelworks.training.plan.rejections import LeftOut, LeftOutClip
from reelworks.training.recipe import origin
from reelworks.training.recipe.dataset import ChosenBuckets, RecipeData
from reelworks.training.recipe.recipe import Recipe

_LINES_SHOWN = 20


@dataclass(frozen=True)
class CatalogCounts:
    """Numbers of a catalog's rows: all, readable videos and images, and unreadable ones (`bad`)."""

    clips: int
    videos: int
    images: int
    bad: int


@dataclass(frozen=True)
class PlannedBucket:
    """A bucket in an epoch.

    Attributes:
        sequence_degree: GPUs that share each clip.
        global_batch: Clips of a full optimizer step.
        clips: Clips that are trained, each repeat of a dataset once.
        incomplete: Micro-batches with fewer clips than the batch size.
    """

    name: str
    num_frames: int
    height: int
    width: int
    batch_size: int
    sequence_degree: int
    global_batch: int
    keep_prob: float
    clips: int
    micro_batches: int
    incomplete: int
    tokens_per_clip: int


@dataclass(frozen=True)
class PlanNumbers:
    """Numbers of an epoch, for which no text of the catalog is read.

    Attributes:
        planned: Clips that are trained, each repeat of a dataset once.
        repeated: Further showings of them, which fill micro-batches.
        left_out: Clips that are not trained, by reason.
        incomplete: Micro-batches with fewer clips than the batch size.
        world: Number of GPUs.
        imbalance: Share of time in which ranks wait for the slowest, from 0 to 1.
        padding: Share of the clips in micro-batches that have weight 0, from 0 to 1.
        steps_not_full: Steps that lack a micro-batch.
        recomputation: What backward passes compute again, by entry, where the model's key leaves it to entries; None if the
            memory of the GPUs, by which it is chosen, is not known.
    """

    catalog: CatalogCounts
    planned: int
    repeated: int
    held_out: int
    left_out: dict[str, LeftOut]
    buckets: list[PlannedBucket]
    empty_buckets: list[str]
    steps_per_epoch: int
    micro_batches: int
    incomplete_batch: str
    incomplete: int
    micro_batches_per_step: int
    same_bucket_run: int
    world: int
    imbalance: float
    padding: float
    steps_not_full: int
    recomputation: dict[str, Recomputation] | None


@dataclass(frozen=True)
class PlanSummary(PlanNumbers):
    """An epoch with the names of some clips, as a run folder keeps it in `plan/summary.json`.

    Attributes:
        reasons: The first clips that are left out for each reason.
        exclude_list_unmatched: Lines of the exclude list that name no clip.
        without_effect: A line for each key of the recipe that has no effect, and for a warm-up that training does not finish.
        other_measurements: A line for each file of measurements that is of another network than the recipe's, or of that network
            as it is trained otherwise.
        uneven_clips: Clips of variable frame rate whose frames are read one after the other, so that the frame rate that
            the model is told is their average.
        chosen_buckets: How the bucket entries were chosen; None if the recipe has its own.
        fps: Median frame rate of the videos, as the model is told it; None if there are none.
    """

    reasons: dict[str, list[LeftOutClip]]
    exclude_list_unmatched: list[str]
    mirrored_sides: list[MirroredSides]
    without_effect: list[str]
    other_measurements: list[str]
    uneven_clips: int
    shared_files: list[SharedFiles]
    graphs: PlannedGraphs
    chosen_buckets: ChosenBuckets | None
    losses: Losses = field(metadata=results.INLINED)
    fps: float | None = field(default=None, kw_only=True)


def summarise(
    data: RecipeData, spec: PlanSpec, plan: EpochPlan, *, world: int, epoch: int = 0, given: Recipe | None = None
) -> PlanSummary:
    """Summarise an epoch on `world` ranks: buckets, reasons with their first files, steps, imbalance, padding.

    `given` is the recipe that names files of measurements, whose numbers that of `data` has.
    """
    left_out = by_reason(*data.assignment(epoch))
    rows, uneven_clips = data.rows, 0
    if data.spec.data.frame_rate is None and rows.variable_fps.any():
        row = rows.find(np.unique(plan.uid))
        uneven_clips = int(rows.variable_fps[row[row >= 0]].sum())
    return PlanSummary(
        **vars(numbers(data, spec, plan, left_out, world)),
        reasons=rejections.named(data, left_out),
        exclude_list_unmatched=data.exclude_list.unmatched(rows),
        mirrored_sides=data_advice.mirrored_sides(data.recipe.dataset, rows),
        without_effect=[
            *idle_keys.lines(data.recipe),
            *_unfinished_warmup(data.recipe.train, data.stage, plan),
            *_unsaved_best(data.recipe),
            *_untrained_timesteps(data.recipe),
        ],
        other_measurements=origin.lines(given or data.recipe),
        uneven_clips=uneven_clips,
        fps=decode_requests.usual_fps(data),
        shared_files=data_advice.shared_files(data.recipe.dataset, rows),
        graphs=compiled_graphs.of_plan(data, plan),
        chosen_buckets=data.chosen,
        losses=discarded.losses(data, plan),
    )


def _unfinished_warmup(train: TrainConfig, stage: StageStart, plan: EpochPlan) -> list[str]:
    """Return a line if the training, or its stage, ends before the learning rate's warm-up; epochs are as the planned one."""
    of_epochs = math.inf if train.max_epochs is None else (train.max_epochs - stage.epoch) * plan.num_steps
    steps = of_epochs if train.max_steps is None else min(of_epochs, train.max_steps - stage.step)
    if train.warmup_steps <= steps or steps < 1:
        return []
    return [
        f"train.warmup_steps = {train.warmup_steps} outlasts the {units.plural(int(steps), 'step')} of training: the rate reaches "
        f"{steps / train.warmup_steps:.0%} of train.learning_rate, and no schedule follows; lower it"
    ]


def _unsaved_best(recipe: Recipe) -> list[str]:
    """Return a line if the best of the validations that may end training need not be saved, so that nothing keeps it."""
    saves, every = recipe.checkpoints, recipe.validation.every_steps
    by_loss = saves.keep_best is not None and saves.keep_best.metric == "validation/loss"
    if not by_loss or recipe.validation.patience is None or every is None or saves.at_best:
        return []
    if saves.every_steps is not None and every % saves.every_steps == 0:
        return []
    return [
        "checkpoints.keep_best keeps the best of the steps that are saved, and not each that is validated is; "
        "set checkpoints.at_best = true, so that the best is kept when validation.patience ends training"
    ]


def _untrained_timesteps(recipe: Recipe) -> list[str]:
    """Return a line if validation measures at timesteps that are not trained, as the same ones in all stages may be."""
    first, last = recipe.objective.timestep_range
    untrained = [f"{time:g}" for time in recipe.validation.timesteps or () if not first <= time <= last]
    if not untrained:
        return []
    return [
        f"validation.timesteps {', '.join(untrained)} are not trained (objective.timestep_range is {first:g} to {last:g}): "
        "their loss says little, and counts in what is best; leave them out, or all for five of those that are trained"
    ]


@cache
def _reader() -> TypeAdapter[PlanSummary]:
    return TypeAdapter(PlanSummary)


def read_summary(run: RunFolder, step: int | None = None) -> PlanSummary | None:
    """Read the summary of a run's newest plan, or of that which a step was trained by; None if it is missing or damaged."""
    part = None if step is None else history.part_of(run, step)
    return read_summary_file(run.summary_file() if part is None else part.summary)


def read_summary_file(file: Path) -> PlanSummary | None:
    """Read a summary; None if it is missing or damaged."""
    with suppress(OSError, ValueError, TypeError):
        value = user_files.read_json(file)
        return _reader().validate_python({**value, "losses": value})
    return None


def numbers(data: RecipeData, spec: PlanSpec, plan: EpochPlan, left_out: list[Rejection], world: int) -> PlanNumbers:
    """Return the numbers of a plan on `world` ranks."""
    buckets, places, rows = _buckets(data, plan, spec), len(plan.uid), data.rows
    of_entries = data.recipe.buckets.gradient_checkpointing
    is_open = data.recipe.model.gradient_checkpointing == "auto" and not of_entries
    return PlanNumbers(
        catalog=CatalogCounts(
            clips=len(rows),
            videos=int((~rows.is_image & rows.readable).sum()),
            images=int((rows.is_image & rows.readable).sum()),
            bad=int((~rows.readable).sum()),
        ),
        planned=plan.planned,
        repeated=plan.repeated,
        held_out=sum(len(r.row) for r in left_out if r.reason == Reason.HELD_OUT),
        left_out=rejections.counts(data, left_out),
        buckets=[bucket for bucket in buckets if bucket.clips],
        empty_buckets=[bucket.name for bucket in buckets if not bucket.clips],
        steps_per_epoch=plan.num_steps,
        micro_batches=len(plan.offsets) - 1,
        incomplete_batch=spec.incomplete_batch,
        incomplete=sum(bucket.incomplete for bucket in buckets),
        micro_batches_per_step=spec.micro_batches_per_step,
        same_bucket_run=spec.same_bucket_run,
        world=world,
        imbalance=plan.waste(spec, world),
        padding=1 - int(plan.real.sum()) / places if places else 0.0,
        steps_not_full=int((plan.steps < 0).any(axis=1).sum()),
        recomputation=None if is_open else of_entries,
    )


def _buckets(data: RecipeData, plan: EpochPlan, spec: PlanSpec) -> list[PlannedBucket]:
    """Return statistics of every bucket, empty ones included."""
    table, n = data.table, len(data.table.buckets)
    bucket = plan.micro_bucket
    clips = blocks.sums(bucket, plan.own_clips, n).astype(np.int64).tolist()
    incomplete = np.bincount(bucket[plan.own_clips < table.column_sizes()[bucket]], minlength=n).tolist()
    batches = np.bincount(bucket, minlength=n).tolist()
    return [
        PlannedBucket(
            name=b.name,
            num_frames=b.shape.num_frames,
            height=b.shape.height,
            width=b.shape.width,
            batch_size=b.batch_size,
            sequence_degree=b.sequence_degree,
            global_batch=b.column_size * spec.micro_batches_per_step,
            keep_prob=table.entries[b.entry].keep_prob,
            clips=clips[i],
            micro_batches=batches[i],
            incomplete=incomplete[i],
            tokens_per_clip=b.tokens,
        )
        for i, b in enumerate(table.buckets)
    ]


def warnings(summary: PlanSummary) -> list[str]:
    """Return the warnings of a summary, to print before training."""
    unmatched = summary.exclude_list_unmatched
    lines = [f"exclude_file names {line}, which is no clip of the recipe" for line in unmatched[:_LINES_SHOWN]]
    lines += summary.without_effect + summary.other_measurements
    more = len(unmatched) - _LINES_SHOWN
    if clips := summary.uneven_clips:
        lines.append(
            f"{units.plural(clips, 'clip')} of variable frame rate {units.verb(clips, 'are')} read frame by frame, so "
            "that motion is uneven and the frame rate that the model is told is an average; data.fps reads frames at even times"
        )
    lines += [f"exclude_file has {more} more lines that name no clip"] if more > 0 else []
    for overlap in summary.shared_files:
        outer, inner = overlap.datasets
        lines.append(
            f"the datasets {outer} and {inner} share {units.plural(overlap.files, 'file')}, which an epoch trains twice; "
            "remove one of the datasets, or give it a name if this is intended"
        )
    for mirrored in summary.mirrored_sides:
        count = f"{units.plural(mirrored.clips, 'caption', 'name')}"
        lines.append(
            f"the dataset {mirrored.dataset} has flip, but {count} left or right, which would be wrong of a "
            "mirrored clip; set flip = 0 there, or keep these clips in a dataset of their own"
        )
    return lines
