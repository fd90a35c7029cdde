"""How coverage, inspections and contact sheets look on a terminal."""

from __future__ import annotations

import math
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reelworks.cli import show, show_losses

if TYPE_CHECKING:
    from reelworks.analysis.coverage import Coverage, EpochCoverage
    from reelworks.report.inspect import Inspection

_FILES_SHOWN = 3
_WORST_SHOWN = 10
_ACCOUNT = ("trained", "failed", "skipped", "not_yet")


def coverage(told: Coverage, places: list[int]) -> None:
    """The account of every epoch, then the clips asked for."""
    if not told.epochs:
        show.line("no epoch has begun")
    for epoch in told.epochs:
        show.line(f"{_epoch(epoch.generation, epoch.epoch)}: {_account(epoch)}")
        others = {label: n for label, n in epoch.counts.items() if label not in _ACCOUNT}
        if others:
            show.line("  not planned: " + ", ".join(f"{n} {label}" for label, n in others.items()))
        for lost in epoch.lost:
            show.line(f"  {lost}")
        for problem in epoch.problems:
            show.line(f"  {problem}")
    for clip in told.clips(places):
        copy = f" (copy {clip['copy']})" if told.copy.any() else ""
        show.line(f"\n{clip['path']}{copy}")
        for one in clip["epochs"]:
            show.line(f"  {_epoch(one['generation'], one['epoch'])}: {_became(one)}")


def _epoch(generation: int, epoch: int) -> str:
    """An epoch's name; data that began again count their epochs from 0 again."""
    return f"epoch {epoch}" + (f" of generation {generation}" if generation else "")


def _account(epoch: EpochCoverage) -> str:
    if epoch.lost:
        return f"{epoch.planned} planned; not every clip can be told, since a record is missing"
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


def inspection(found: Inspection, html: Path | None) -> None:
    """Distributions, advice, and buckets as TOML."""
    s = found.summary
    kinds = ", ".join(f"{count} {kind}s" for kind, count in s.by_kind)
    show.line(f"{s.clips} clips: {kinds}, {s.bad} unreadable; {s.duration_seconds:.0f} s of video")
    for title, unit, histogram in found.histograms:
        largest = max(count for _, count in histogram)
        width = max(12, *(len(label) for label, _ in histogram))
        show.line(f"\n{title} ({unit})")
        for label, count in histogram:
            show.line(f"  {label:>{width}}  {'█' * math.ceil(30 * count / largest):<30}  {count}")
    if found.advice:
        show.line("\nadvice")
    for one in found.advice:
        show.line(f"  {one.text}: {one.remedy}")
        for file in one.files[:_FILES_SHOWN]:
            show.line(f"    {file}")
        if len(one.files) > _FILES_SHOWN:
            show.line("    and more; --json names them")
    show.line("\nproposed buckets")
    show.line(found.proposal.to_toml())
    if html is not None:
        show.line(str(html))


def contact_sheet(told: dict[str, Any]) -> None:
    """Crop losses by bucket, the clips that lose most, and where the sheets are."""
    for bucket in told["buckets"]:
        show.line(
            f"{bucket['name']}: {bucket['clips']} clip{'s' if bucket['clips'] > 1 else ''} of {bucket['shape']}, "
            f"{bucket['mean_lost']:.1%} cut away in the mean, {bucket['max_lost']:.1%} at most"
        )
        for one in bucket["shown"]:
            if one["error"]:
                show.line(f"  cannot be trained: {one['path']}: {one['error']}")
    show.line("cut most")
    for one in told["worst"][:_WORST_SHOWN]:
        size = f"{one['width']}×{one['height']}"
        show.line(f"  {one['lost']:>6.1%}  {one['path']}  {size} in {one['bucket']}")
    if told["short_clips"]:
        show.line(show_losses.short_clips(told["short_clips"]))
    show.line(told["index"])
