"""Terminal output that several commands share: lines, JSON, tables, the progress of a scan, and an epoch's plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from reelworks.catalog.scan import ScanProgress

_FILES_SHOWN = 5
_BUCKET_KEYS = ("batch_size", "global_batch", "clips", "micro_batches", "incomplete", "tokens_per_clip")


def line(text: str) -> None:
    """Print one line at once, so that it keeps its place among the lines of other processes."""
    print(text, flush=True)


def json(value: Any) -> None:
    """Print one JSON value and nothing else."""
    from reelworks.core import files

    print(files.to_json(value, indent=2))


def new_table(first: str, *others: str) -> Table:
    """Return an empty table with these headings; all columns but the first one are aligned to the right."""
    from rich import box
    from rich.table import Table

    empty = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    empty.add_column(first, no_wrap=True)
    for name in others:
        empty.add_column(name, justify="right")
    return empty


def print_table(filled: Table) -> None:
    """Print a table in the width of the terminal."""
    from rich.console import Console

    Console(highlight=False).print(filled)


@contextmanager
def scan_progress(quiet: bool = False) -> Iterator[Callable[[ScanProgress], None]]:
    """Show a progress bar with ETA from the first report to the last, then remove it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(highlight=False)
    columns = (TextColumn("scanning"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal)
    task = bar.add_task("scanning", total=None)

    def show(progress: ScanProgress) -> None:
        bar.start()
        bar.update(task, total=progress.total, completed=progress.done)
        if progress.done >= progress.total:
            bar.stop()

    try:
        yield show
    finally:
        bar.stop()


def plan(forecast: dict[str, Any]) -> None:
    """Print buckets, reasons and totals of an epoch."""
    from reelworks.analysis import plan_report

    buckets = new_table("bucket", "size", "batch", "global", "clips", "batches", "not full", "tokens")
    for bucket in forecast["buckets"]:
        cells = [bucket[key] for key in _BUCKET_KEYS]
        buckets.add_row(bucket["name"], f"{bucket['height']}×{bucket['width']}", *map(str, cells))
    print_table(buckets)
    _reasons(forecast)
    for warning in plan_report.warnings(forecast):
        line(f"warning: {warning}")
    line(
        f"{forecast['steps_per_epoch']} steps per epoch of {forecast['micro_batches_per_step']} micro-batches "
        f"(slots of {forecast['same_bucket_run']}); {forecast['micro_batches']} micro-batches, "
        f"{forecast['incomplete']} not full ({_incomplete(forecast)}), {forecast['rows_not_full']} steps not full"
    )
    line(
        f"{forecast['planned']} clips planned; at {forecast['world']} GPU{'s' if forecast['world'] > 1 else ''}: "
        f"imbalance {forecast['imbalance']:.1%}, padding {forecast['padding']:.1%}"
    )


def _incomplete(forecast: dict[str, Any]) -> str:
    return {
        "partial": "trained with fewer clips",
        "pad": "padded with copies of weight 0",
        "merge": "whose clips fit no smaller bucket",
        "repeat": f"filled with {forecast['repeated']} repeated clips",
    }[forecast["incomplete_batch"]]


def _reasons(forecast: dict[str, Any]) -> None:
    for reason, entries in forecast["reasons"].items():
        clips = forecast["left_out"][reason]["clips"]
        line(f"{reason}: {clips}")
        if reason == "held_out":
            continue
        for entry in entries[:_FILES_SHOWN]:
            line(f"  {entry['path']}" + (f": {entry['detail']}" if entry["detail"] else ""))
        if clips > _FILES_SHOWN:
            line(f"  and {clips - _FILES_SHOWN} more; --rejected FILE lists all")


Json = dict[str, Any]


def losses(forecast: Json) -> None:
    """Print proposed buckets, and the shares of pictures and frames that an epoch leaves out."""
    for text in (forecast["chosen_buckets"] or {"lines": []})["lines"]:
        line(text)
    crop, frames = forecast["crop"], forecast["frames"]
    of_frames = {one["name"]: one for one in frames["by_bucket"]}
    parts = new_table("part of clips", "cropped away", "frames trained", "frames in all", "share")
    for one in crop["by_bucket"]:
        parts.add_row(one["name"], f"{one['mean']:.1%}", *_frames(of_frames.get(one["name"])))
    parts.add_row("total", f"{crop['mean']:.1%}", *_frames(frames if frames["there"] else None))
    print_table(parts)
    for one in crop["worst"][:_FILES_SHOWN]:
        line(f"  cropped {one['lost']:.1%}: {one['path']}, {one['width']}×{one['height']} in {one['bucket']}")
    if frames["less_than_half"]:
        line(f"clips of which an epoch trains less than half: {frames['less_than_half']}")
    for one in frames["longest"][:_FILES_SHOWN]:
        line(f"  {one['trained']} of {one['there']} frames: {one['path']} in {one['bucket']}")
    if forecast["short_clips"]:
        line(short_clips(forecast["short_clips"]))


def short_clips(count: int) -> str:
    """Return a sentence with the number of videos that `data.short_clips` extends."""
    return f"{count} clip{' is' if count == 1 else 's are'} shorter than {'its' if count == 1 else 'their'} bucket"


def _frames(one: Json | None) -> list[str]:
    """Return the cells about frames, which are empty for pictures."""
    if one is None:
        return ["", "", ""]
    return [str(one["trained"]), str(one["there"]), f"{one['trained'] / one['there']:.1%}"]
