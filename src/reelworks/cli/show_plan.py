"""Terminal output of `plan`: forecasts of several epochs, warnings, and comparisons of two plans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reelworks.analysis import compiled_graphs, plan_report
from reelworks.buckets.assign import Reason
from reelworks.cli import show
from reelworks.core import units

Json = dict[str, Any]
_FILES_SHOWN = 5
_BUCKET_KEYS = ("batch_size", "global_batch", "clips", "micro_batches", "incomplete", "tokens_per_clip")
_EPOCH_KEYS = ("steps", "clips", "tokens", "micro_batches", "incomplete", "imbalance", "padding")
_SHARES = ("share_of_clips", "share_of_tokens", "share_of_time", "share_of_gradient")


def forecast(values: Json, html: Path | None) -> None:
    """Print the first epoch, then all epochs and their totals."""
    epoch(values)
    _losses(values)
    shares = show.new_table("share of", "clips", "tokens", "time", "gradient")
    for one in values["shares"]:
        shares.add_row(one["name"], *(f"{one[key]:.1%}" for key in _SHARES))
    show.print_table(shares)
    if len(values["datasets"]) > 1:
        _datasets(values["datasets"])
    if len(values["epochs"]) > 1:
        epochs = show.new_table("epoch", "steps", "clips", "tokens", "batches", "not full", "imbalance", "padding")
        for one in values["epochs"]:
            epochs.add_row(str(one["epoch"]), *_cells(one))
        epochs.add_row("sum", *_cells(values["sum"]))
        show.print_table(epochs)
    _never_seen(values)
    if (steps := values["max_steps_to_set"]) is not None:
        show.line(
            "\nwarning: the learning rate schedule needs train.max_steps, which is not set, so this recipe cannot be "
            f"trained; all its epochs have {steps} steps"
        )
    _warning(values)
    if html is not None:
        show.line(f"\n{html}")


def epoch(forecast: Json) -> None:
    """Print buckets, reasons and totals of an epoch."""
    buckets = show.new_table("bucket", "size", "batch", "global", "clips", "batches", "not full", "tokens")
    for bucket in forecast["buckets"]:
        cells = [bucket[key] for key in _BUCKET_KEYS]
        buckets.add_row(bucket["name"], f"{bucket['width']}×{bucket['height']}", *map(str, cells))
    show.print_table(buckets)
    _reasons(forecast)
    for warning in plan_report.warnings(forecast):
        show.line(f"warning: {warning}")
    show.line(
        f"{units.plural(forecast['steps_per_epoch'], 'step')} per epoch of "
        f"{units.plural(forecast['micro_batches_per_step'], 'micro-batch')} (slots of {forecast['same_bucket_run']}); "
        f"{units.plural(forecast['micro_batches'], 'micro-batch')}, {forecast['incomplete']} not full "
        f"({_incomplete(forecast)}), {units.plural(forecast['rows_not_full'], 'step')} not full"
    )
    show.line(
        f"{units.plural(forecast['planned'], 'showing')} of clips planned; at {units.plural(forecast['world'], 'GPU')}: "
        f"imbalance {forecast['imbalance']:.1%}, padding {forecast['padding']:.1%}"
    )

    for text in compiled_graphs.lines(forecast["graphs"]):
        show.line(text)


def _incomplete(forecast: Json) -> str:
    return {
        "partial": "trained with fewer clips",
        "pad": "padded with copies of weight 0",
        "merge": "whose clips fit no smaller bucket",
        "repeat": f"filled with {forecast['repeated']} repeated clips",
    }[forecast["incomplete_batch"]]


def _reasons(forecast: Json) -> None:
    for reason, entries in forecast["reasons"].items():
        clips = forecast["left_out"][reason]["clips"]
        show.line(f"{reason}: {clips}" + (", left out by the recipe" if Reason[reason.upper()].is_chosen else ""))
        if reason == "held_out":
            continue
        for entry in entries[:_FILES_SHOWN]:
            show.line(f"  {entry['path']}" + (f": {entry['detail']}" if entry["detail"] else ""))
        if clips > _FILES_SHOWN:
            show.line(f"  and {clips - _FILES_SHOWN} more; --rejected FILE lists all")


def _losses(forecast: Json) -> None:
    """Print proposed buckets, and the shares of pictures and frames that an epoch leaves out."""
    for text in (forecast["chosen_buckets"] or {"lines": []})["lines"]:
        show.line(text)
    crop, frames = forecast["crop"], forecast["frames"]
    of_frames = {one["name"]: one for one in frames["by_bucket"]}
    parts = show.new_table("part of clips", "cropped away", "frames trained", "frames in all", "share")
    for one in crop["by_bucket"]:
        parts.add_row(one["name"], f"{one['mean']:.1%}", *_frames(of_frames.get(one["name"])))
    parts.add_row("total", f"{crop['mean']:.1%}", *_frames(frames if frames["there"] else None))
    show.print_table(parts)
    for one in crop["worst"][:_FILES_SHOWN]:
        show.line(f"  cropped {one['lost']:.1%}: {one['path']}, {one['width']}×{one['height']} in {one['bucket']}")
    if frames["less_than_half"]:
        show.line(f"clips of which an epoch trains less than half: {frames['less_than_half']}")
    for one in frames["longest"][:_FILES_SHOWN]:
        show.line(f"  {one['trained']} of {one['there']} frames: {one['path']} in {one['bucket']}")
    if forecast["short_clips"]:
        show.line(show.short_clips(forecast["short_clips"]))
    if n := forecast["below_rate"]:
        who = "1 video has a frame rate" if n == 1 else f"{n} videos have frame rates"
        show.line(f"{who} lower than data.fps and will be read at {'its' if n == 1 else 'their'} own")


def _frames(one: Json | None) -> list[str]:
    """Return the cells about frames, which are empty for pictures."""
    if one is None:
        return ["", "", ""]
    return [str(one["trained"]), str(one["there"]), f"{one['trained'] / one['there']:.1%}"]


def _datasets(values: list[Json]) -> None:
    table = show.new_table("share of", "clips", "tokens", "time", "showings per clip")
    for one in values:
        table.add_row(one["name"], *(f"{one[key]:.1%}" for key in _SHARES[:3]), f"{one['showings_per_clip']:.2f}")
    show.print_table(table)


def _never_seen(values: Json) -> None:
    epochs = len(values["epochs"])
    never = values["never_seen"]
    when = "this epoch" if epochs == 1 else units.plural(epochs, "epoch")
    by_reason = ", ".join(f"{one['clips']} {reason}" for reason, one in never["by_reason"].items())
    show.line(f"{units.plural(never['clips'], 'clip')} never seen in {when}" + (f": {by_reason}" if by_reason else ""))
    if epochs > 1:
        for reason, one in never["by_reason"].items():
            more = one["clips"] - len(one["files"][:_FILES_SHOWN])
            named = ", ".join(one["files"][:_FILES_SHOWN])
            show.line(f"  {reason}: {named}" + (f" and {more} more" if more else ""))


def _warning(values: Json) -> None:
    proposals = values["proposals"]
    if proposals is None:
        return
    total = values["sum"]
    show.line(f"\nwarning: imbalance {total['imbalance']:.1%}, padding {total['padding']:.1%}")
    for one in proposals:
        show.line(f"  {units.change(one)}")
        show.line(f"    gives {_gives(one)}" + ("" if one["suffices"] else "; better, but not enough"))
    if (fewer := values["fewer_ranks"]) is not None:
        show.line(f"  --world {fewer['world']}\n    gives {_gives(fewer)}")
    if not proposals and fewer is None:
        show.line("  neither merging nor other batch sizes nor fewer GPUs improve it")


def _gives(one: Json) -> str:
    return f"{one['steps']} steps, imbalance {one['imbalance']:.1%}, padding {one['padding']:.1%}"


def difference(values: Json, names: tuple[str, str]) -> None:
    """Print keys, totals, buckets and reasons of two recipes."""
    keys = show.new_table("key", *names)
    for one in values["keys"]:
        keys.add_row(one["key"], str(one["a"]), str(one["b"]))
    show.print_table(keys) if values["keys"] else show.line("no key differs")
    figures = show.new_table(units.plural(values["epochs"], "epoch"), *names)
    for one in values["figures"]:
        figures.add_row(one["name"].replace("_", " "), *(_number(one["name"], one[x]) for x in "ab"))
    show.print_table(figures)
    for title, part in (("clips of bucket", "buckets"), ("rejected", "reasons")):
        table = show.new_table(title, *names)
        for one in values[part]:
            table.add_row(one["name"], str(one["a"]), str(one["b"]))
        show.print_table(table)


def _cells(one: Json) -> list[str]:
    return [_number(key, one[key]) for key in _EPOCH_KEYS]


def _number(key: str, value: float) -> str:
    return f"{value:.1%}" if key in ("imbalance", "padding") else str(value)
