"""Terminal output of `coverage` and `contact-sheet`."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from reelworks.cli import show

if TYPE_CHECKING:
    from reelworks.analysis.coverage import Coverage, EpochCoverage

_WORST_SHOWN = 10
_ACCOUNT = ("trained", "failed", "skipped", "not_yet")


def coverage(report: Coverage, places: list[int]) -> None:
    """Print the counts of every epoch, then the selected clips."""
    if not report.epochs:
        show.line("no epoch has begun")
    for epoch in report.epochs:
        show.line(f"{_epoch(epoch.data_restarts, epoch.epoch)}: {_account(epoch)}")
        others = {label: n for label, n in epoch.counts.items() if label not in _ACCOUNT}
        if others:
            show.line("  not planned: " + ", ".join(f"{n} {label}" for label, n in others.items()))
        for lost in epoch.lost:
            show.line(f"  {lost}")
        for problem in epoch.problems:
            show.line(f"  {problem}")
    for clip in report.clips(places):
        copy = f" (copy {clip['copy']})" if report.copy.any() else ""
        show.line(f"\n{clip['path']}{copy}")
        for one in clip["epochs"]:
            show.line(f"  {_epoch(one['data_restarts'], one['epoch'])}: {_became(one)}")


def _epoch(data_restarts: int, epoch: int) -> str:
    """Return an epoch's name; epochs count from 0 again after a restart of the data."""
    return f"epoch {epoch}" + (f" of data restart {data_restarts}" if data_restarts else "")


def _account(epoch: EpochCoverage) -> str:
    if epoch.lost:
        return f"{epoch.planned} planned; some clips are unknown, since a record is missing"
    parts = [epoch.counts.get(name, 0) for name in _ACCOUNT]
    text = f"{epoch.planned} planned = {parts[0]} trained + {parts[1]} failed + {parts[2]} skipped"
    text += f" + {parts[3]} not yet" if parts[3] or not epoch.ended else ""
    if epoch.pruned is not None:
        when = datetime.fromtimestamp(epoch.pruned).strftime("%Y-%m-%d %H:%M")
        return f"{text}; its record was removed on {when} to stay within coverage.max_disk"
    if epoch.adds_up:
        return text + "; adds up"
    return text.replace(" = ", " against ", 1) + "; does NOT add up"


def _became(one: dict[str, Any]) -> str:
    step = f" (step {one['step']})" if "step" in one else ""
    reason = f": {one['reason']}" if "reason" in one else ""
    return str(one["became"]).replace("_", " ") + step + reason


def contact_sheet(summary: dict[str, Any]) -> None:
    """Print crop losses by bucket, the clips that lose most, and the path of the index page."""
    for bucket in summary["buckets"]:
        show.line(
            f"{bucket['name']}: {bucket['clips']} clip{'s' if bucket['clips'] > 1 else ''} of {bucket['shape']}, "
            f"{bucket['mean_lost']:.1%} cropped away on average, {bucket['max_lost']:.1%} at most"
        )
        for clip in bucket["shown"]:
            if clip["error"]:
                show.line(f"  cannot be trained: {clip['path']}: {clip['error']}")
    show.line("cropped most")
    for clip in summary["worst"][:_WORST_SHOWN]:
        size = f"{clip['width']}×{clip['height']}"
        show.line(f"  {clip['lost']:>6.1%}  {clip['path']}  {size} in {clip['bucket']}")
    if summary["short_clips"]:
        show.line(show.short_clips(summary["short_clips"]))
    show.line(summary["index"])
