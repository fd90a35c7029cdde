"""How proposed buckets, and what crops and short buckets leave out, look on a terminal."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from reelworks.cli import show

Json = dict[str, Any]
_FILES_SHOWN = 5

_console = Console(highlight=False)


def losses(told: Json) -> None:
    """Buckets that were proposed; pictures and frames that an epoch does not show."""
    for line in (told["chosen_buckets"] or {"lines": []})["lines"]:
        show.line(line)
    crop, frames = told["crop"], told["frames"]
    of_frames = {one["name"]: one for one in frames["by_bucket"]}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("shown of clips", no_wrap=True)
    for name in ("cut away", "frames trained", "frames there", "seen"):
        table.add_column(name, justify="right")
    for one in crop["by_bucket"]:
        table.add_row(one["name"], f"{one['mean']:.1%}", *_frames(of_frames.get(one["name"])))
    table.add_row("in all", f"{crop['mean']:.1%}", *_frames(frames if frames["there"] else None))
    _console.print(table)
    for one in crop["worst"][:_FILES_SHOWN]:
        show.line(
            f"  cut {one['lost']:.1%}: {one['path']}, {one['width']}×{one['height']} in {one['bucket']}"
        )
    if frames["less_than_half"]:
        show.line(f"less than half is seen in an epoch: {frames['less_than_half']} clips")
    for one in frames["longest"][:_FILES_SHOWN]:
        show.line(f"  {one['trained']} of {one['there']} frames: {one['path']} in {one['bucket']}")
    if told["short_clips"]:
        show.line(short_clips(told["short_clips"]))


def short_clips(count: int) -> str:
    """How many videos `data.short_clips` extends."""
    return f"{count} clip{' is' if count == 1 else 's are'} shorter than {'its' if count == 1 else 'their'} bucket"


def _frames(one: Json | None) -> list[str]:
    """Cells of a bucket; pictures have none."""
    if one is None:
        return ["", "", ""]
    return [str(one["trained"]), str(one["there"]), f"{one['trained'] / one['there']:.1%}"]
