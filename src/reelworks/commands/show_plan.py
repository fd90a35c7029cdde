"""Terminal output of `plan`: forecasts of epochs and stages, warnings, and comparisons of two plans."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from reelworks.commands import show
from reelworks.core import units
from reelworks.data.buckets.assign import Reason
from reelworks.training.memory import recomputation
from reelworks.training.plan import compiled_graphs, plan_comparison, plan_report
from reelworks.training.plan.discarded import BucketFrames, VideoFrames
from reelworks.training.plan.epoch_stats import DatasetShare, Figures
from reelworks.training.plan.plan_comparison import ChangedKey, ComparedNumber, PlanComparison
from reelworks.training.plan.plan_forecast import Advice, LookAhead, PlanForecast
from reelworks.training.plan.plan_report import PlanSummary

if TYPE_CHECKING:
    from reelworks.training.preflight.stage_forecast import RunComparison, RunForecast, StageComparison

_FILES_SHOWN = 5
_LABELS = {"seconds": "time", "memory_bytes": "memory", "checkpoint_bytes": "a checkpoint", "disk_bytes": "disk"}


def forecast(values: PlanForecast, html: Path | None) -> None:
    """Print the first epoch, then all epochs and their totals."""
    epoch(values)
    _losses(values)
    ahead = values.ahead
    shares = (
        (one.name, *map(_share, (one.share_of_clips, one.share_of_tokens, one.share_of_time, one.share_of_gradient)))
        for one in ahead.shares
    )
    show.table(("share of", "clips", "tokens", "time", "gradient"), shares)
    if len(ahead.datasets) > 1:
        _datasets(ahead.datasets)
    if len(ahead.epochs) > 1:
        epochs = [(each.epoch, *_cells(each.figures)) for each in ahead.epochs]
        headings = ("epoch", "steps", "clips", "tokens", "batches", "not full", "imbalance", "padding")
        show.table(headings, [*epochs, ("sum", *_cells(ahead.sum))])
    _never_seen(ahead)
    if values.strategies:
        _strategies(values)
    if (gpu := values.on_gpu) is not None:
        show.line(
            f"\nOn {gpu.gpu}: {gpu.steps:,} steps of {'' if gpu.is_measured else '≈ '}{units.number(gpu.seconds_per_step, 2)} s, and "
            f"{units.size(gpu.memory_bytes)} of memory, estimated"
        )
    if (steps := values.learning_rate_steps) is not None:
        show.line(f"\nThe learning rate falls over {steps} steps, as if each epoch had those of the first.")
    _warning(values.advice, ahead.sum)
    if html is not None:
        show.line(f"\n{html}")


def stages(values: RunForecast) -> None:
    """Print the plan of each stage, and all of them side by side."""
    for one in values.stages:
        show.line(f"\nstage {one.name}, for {one.ends}")
        forecast(one.plan, None)
    rows = []
    for one in values.stages:
        time = ("" if one.is_measured else "≈ ") + units.duration(one.seconds)
        memory = units.size(one.memory_bytes)
        counts = (str(one.steps), units.number(one.epochs), str(one.clips), str(one.tokens))
        about = "" if one.is_exact else "≈ "
        rows.append((one.name, one.ends, *(about + count for count in counts), time, memory))
    totals = (values.steps, "", values.clips, values.tokens, units.duration(values.seconds))
    headings = ("stage", "ends after", "steps", "epochs", "clips", "tokens", "time", "memory")
    show.table(headings, [*rows, ("sum", "", *totals, units.size(values.memory_bytes))])
    show.line(
        f"checkpoints of {units.size(values.checkpoint_bytes)} at most take up to "
        f"{units.size(values.disk_bytes)} of disk"
    )
    if not all(one.is_exact for one in values.stages):
        show.line("≈ of steps and clips: epochs that were not planned count as the last one of the stage that was")
    if not all(one.is_measured for one in values.stages):
        show.line(
            f"≈ of times: estimated for {values.gpu}; cost.measured, by `reelworks tune`, tells the time of a GPU"
        )


def epoch(plan: PlanSummary) -> None:
    """Print buckets, reasons and totals of an epoch."""
    shares = any(one.sequence_degree > 1 for one in plan.buckets)
    numbers = ("global", "clips", "batches", "not full", "tokens")
    rows = []
    for one in plan.buckets:
        ranks = (one.sequence_degree,) if shares else ()
        counts = one.global_batch, one.clips, one.micro_batches, one.incomplete, one.tokens_per_clip
        rows.append((one.name, f"{one.width}×{one.height}", one.batch_size, *ranks, *counts))
    show.table(("bucket", "size", "batch", *(("GPUs",) if shares else ()), *numbers), rows)
    _reasons(plan)
    for warning in plan_report.warnings(plan):
        show.line(f"warning: {warning}")
    show.line(
        f"{units.plural(plan.steps_per_epoch, 'step')} per epoch of "
        f"{units.plural(plan.micro_batches_per_step, 'micro-batch')} (slots of {plan.same_bucket_run}); "
        f"{units.plural(plan.micro_batches, 'micro-batch')}, {plan.incomplete} not full "
        f"({_incomplete(plan)}), {units.plural(plan.steps_not_full, 'step')} not full"
    )
    show.line(
        f"{units.plural(plan.planned, 'showing')} of clips planned; at {units.plural(plan.world, 'GPU')}: "
        f"imbalance {plan.imbalance:.1%}, padding {plan.padding:.1%}"
    )

    for text in [*compiled_graphs.lines(plan.graphs), *recomputation.lines_of_plan(plan.recomputation)]:
        show.line(text)


def _incomplete(plan: PlanSummary) -> str:
    return {
        "partial": "trained with fewer clips",
        "pad": "padded with copies of weight 0",
        "merge": "whose clips fit no smaller bucket",
        "repeat": f"filled with {plan.repeated} repeated clips",
    }[plan.incomplete_batch]


def _reasons(plan: PlanSummary) -> None:
    for reason, listed in plan.reasons.items():
        clips = plan.left_out[reason].clips
        show.line(f"{reason}: {clips}" + (", left out by the recipe" if Reason[reason.upper()].is_chosen else ""))
        if reason == "held_out":
            continue
        for part, number in plan.left_out[reason].failed.items():
            show.line(f"  {part} leaves out {number}")
        for clip in listed[:_FILES_SHOWN]:
            show.line(f"  {clip.path}" + (f": {clip.detail}" if clip.detail else ""))
        if clips > _FILES_SHOWN:
            show.line(f"  and {clips - _FILES_SHOWN} more; --rejected FILE lists all")


def _losses(plan: PlanSummary) -> None:
    """Print proposed buckets, and the shares of pictures and frames that an epoch leaves out."""
    for text in plan.chosen_buckets.lines if plan.chosen_buckets else ():
        show.line(text)
    losses = plan.losses
    crop, frames = losses.crop, losses.frames
    of_frames = {one.name: one for one in frames.by_bucket}
    parts = [(bucket.name, _share(bucket.mean), *_frames(of_frames.get(bucket.name))) for bucket in crop.by_bucket]
    parts.append(("total", _share(crop.mean), *_frames(frames if frames.there else None)))
    show.table(("part of clips", "cropped away", "frames trained", "frames in all", "share"), parts)
    for one in crop.worst[:_FILES_SHOWN]:
        show.line(f"  cropped {one.lost:.1%}: {one.path}, {one.width}×{one.height} in {one.bucket}")
    if frames.less_than_half:
        show.line(f"clips of which an epoch trains less than half: {frames.less_than_half}")
    for clip in frames.longest[:_FILES_SHOWN]:
        show.line(f"  {clip.trained} of {clip.there} frames: {clip.path} in {clip.bucket}")
    if losses.short_clips:
        show.line(show.short_clips(losses.short_clips))
    if n := losses.below_rate:
        who = "1 video has a frame rate" if n == 1 else f"{n} videos have frame rates"
        show.line(f"{who} lower than data.fps and will be read at {'its' if n == 1 else 'their'} own")


def _frames(one: BucketFrames | VideoFrames | None) -> list[str]:
    """Return the cells about frames, which are empty for pictures."""
    return ["", "", ""] if one is None else [str(one.trained), str(one.there), f"{one.trained / one.there:.1%}"]


def _datasets(shares: list[DatasetShare]) -> None:
    rows = (
        (
            *(one.name, _share(one.share_of_clips), _share(one.share_of_tokens), _share(one.share_of_time)),
            f"{one.showings_per_clip:.2f}",
        )
        for one in shares
    )
    show.table(("share of", "clips", "tokens", "time", "showings per clip"), rows)


def _share(value: float) -> str:
    return f"{value:.1%}"


def _strategies(values: PlanForecast) -> None:
    names = {"fixed": "fixed batch size", "equal_tokens": "equal tokens", "planned": "this plan"}
    rows = []
    for one in values.strategies:
        rate = "" if one.tokens_per_second is None else f"{one.tokens_per_second:,.0f}"
        most = "" if one.peak_bytes is None else units.size(one.peak_bytes)
        figures = _share(one.imbalance), one.peak_tokens, most, _share(one.memory_share)
        rows.append((names[one.strategy], one.steps, *figures, rate, f"{one.speedup:.2f}×"))
    show.table(("strategy", "steps", "imbalance", "most tokens", "most memory", "in use", "tokens/s", "speed"), rows)
    if any(one.peak_bytes is None for one in values.strategies):
        show.line("memory follows the tokens; buckets.tuned, a file of `reelworks tune` on your GPU, tells it in bytes")


def _never_seen(ahead: LookAhead) -> None:
    epochs, never = len(ahead.epochs), ahead.never_seen
    when = "this epoch" if epochs == 1 else units.plural(epochs, "epoch")
    by_reason = ", ".join(f"{one.clips} {reason}" for reason, one in never.by_reason.items())
    show.line(f"{units.plural(never.clips, 'clip')} never seen in {when}" + (f": {by_reason}" if by_reason else ""))
    if epochs > 1:
        for reason, one in never.by_reason.items():
            more = one.clips - len(one.files[:_FILES_SHOWN])
            named = ", ".join(one.files[:_FILES_SHOWN])
            show.line(f"  {reason}: {named}" + (f" and {more} more" if more else ""))


def _warning(advice: Advice, total: Figures) -> None:
    if advice.proposals is None:
        return
    show.line(f"\nwarning: imbalance {total.imbalance:.1%}, padding {total.padding:.1%}")
    for one in advice.proposals:
        show.line(f"  {one}")
        show.line(f"    gives {_gives(one.figures)}" + ("" if one.suffices else "; better, but not enough"))
    if (fewer := advice.fewer_ranks) is not None:
        show.line(f"  --world {fewer.world}\n    gives {_gives(fewer.figures)}")
    if not advice.proposals and fewer is None:
        show.line("  neither merging nor other batch sizes nor fewer GPUs improve it")


def _gives(one: Figures) -> str:
    return f"{one.steps} steps, imbalance {one.imbalance:.1%}, padding {one.padding:.1%}"


def difference(compared: PlanComparison, names: tuple[str, str]) -> None:
    """Print keys, totals, buckets and reasons of two recipes."""
    _changed_keys(compared.keys, names)
    _figures(units.plural(compared.epochs, "epoch"), compared.figures, names)
    _clips(compared, names)


def difference_of_stages(compared: RunComparison, names: tuple[str, str]) -> None:
    """Print keys, each stage, and the totals of two recipes with stages."""
    _changed_keys(compared.keys, names)
    for stage in compared.stages:
        _figures(f"stage {stage.name}", stage.figures, names)
        _clips(stage, names)
    _figures("all stages", compared.figures, names)


def _changed_keys(keys: list[ChangedKey], names: tuple[str, str]) -> None:
    if not keys:
        show.line("no key differs")
        return
    show.table(("key", *names), ((key.key, key.a, key.b) for key in keys))


def _figures(title: str, figures: list[ComparedNumber], names: tuple[str, str]) -> None:
    rows = (
        (_LABELS.get(one.name, one.name.replace("_", " ")), _number(one.name, one.a), _number(one.name, one.b))
        for one in figures
    )
    show.table((title, *names), rows)


def _clips(part: PlanComparison | StageComparison, names: tuple[str, str]) -> None:
    for title, counts in (("clips of bucket", part.buckets), ("rejected", part.reasons)):
        if counts:
            show.table((title, *names), ((one.name, one.a, one.b) for one in counts))


def _cells(one: Figures) -> list[str]:
    return [_number(name, getattr(one, name)) for name in plan_comparison.COMPARED]


def _number(key: str, value: float) -> str:
    if key in ("imbalance", "padding"):
        return f"{value:.1%}"
    if key.endswith("_bytes"):
        return units.size(int(value))
    return units.duration(value) if key == "seconds" else units.number(value) if key == "epochs" else str(value)
