"""Terminal output of proposed buckets, and of the pictures and frames that an epoch leaves out."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from reelworks.cli import show

Json = dict[str, Any]
_FILES_SHOWN = 5

_console = Console(highlight=False)


def losses(forecast: Json) -> None:
    """Print proposed buckets, and the shares of pictures and frames that an epoch leaves out."""
    for line in (forecast["chosen_buckets"] or {"lines": []})["lines"]:
        show.line(line)
    crop, frames = forecast["crop"], forecast["frames"]
    of_frames = {one["name"]: one for one in frames["by_bucket"]}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("part of clips", no_wrap=True)
    for name in ("cropped away", "frames trained", "frames in all", "share"):
        table.add_column(name, justify="right")
    for one in crop["by_bucket"]:
        table.add_row(one["name"], f"{one['mean']:.1%}", *_frames(of_frames.get(one["name"])))
    table.add_row("total", f"{crop['mean']:.1%}", *_frames(frames if frames["there"] else None))
    _console.print(table)
    for one in crop["worst"][:_FILES_SHOWN]:
        show.line(
            f"  cropped {one['lost']:.1%}: {one['path']}, {one['width']}×{one['height']} in {one['bucket']}"
        )
    if frames["less_than_half"]:
        show.line(f"clips of which an epoch trains less than half: {frames['less_than_half']}")
    for one in frames["longest"][:_FILES_SHOWN]:
        show.line(f"  {one['trained']} of {one['there']} frames: {one['path']} in {one['bucket']}")
    if forecast["short_clips"]:
        show.line(short_clips(forecast["short_clips"]))


def short_clips(count: int) -> str:
    """Return a sentence with the number of videos that `data.short_clips` extends."""
    return f"{count} clip{' is' if count == 1 else 's are'} shorter than {'its' if count == 1 else 'their'} bucket"


def _frames(one: Json | None) -> list[str]:
    """Return the cells about frames, which are empty for pictures."""
    if one is None:
        return ["", "", ""]
    return [str(one["trained"]), str(one["there"]), f"{one['trained'] / one['there']:.1%}"]
