"""The page of several checkpoints: steps downwards, prompts across, and the numbers of each step beside its clips."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from reelworks.core import files
from reelworks.reports import page, previews
from reelworks.reports.previews import MAX_PREVIEW_BYTES, Preview

if TYPE_CHECKING:  # of which nothing is called, so that no torch is loaded
    from reelworks.inference.evaluate.checkpoint_series import CheckpointSeries


@dataclass(frozen=True)
class GridRow:
    """A checkpoint with its clips; a clip is None if the page has no room for more."""

    step: int
    numbers: list[tuple[str, str, bool]]  # name, value, and whether it is the best
    clips: list[Preview | None]
    copied: dict[int, str]  # training clips that clips look copied from, by the number of the clip


def rows(series: CheckpointSeries) -> list[GridRow]:
    """Return a row for each checkpoint, by ascending step; the clips of the newest ones have room first."""
    left_bytes, shown = MAX_PREVIEW_BYTES, dict[int, list[Preview | None]]()
    for one in reversed(series.checkpoints):
        left_bytes -= sum(path.stat().st_size for path in one.clips if path.is_file())
        pairs = zip(one.clips, series.prompts, strict=True)
        shown[one.step] = [previews.embed(path, prompt) if left_bytes >= 0 else None for path, prompt in pairs]
    return [
        GridRow(
            one.step,
            [(name, f"{value:.4g}", series.best[name] == one.step) for name, value in one.values.items()],
            shown[one.step],
            one.copied,
        )
        for one in series.checkpoints
    ]


def write(series: CheckpointSeries, file: Path) -> None:
    """Write the page as one HTML file."""
    name = series.run.resolve().name
    text = page.render("checkpoint_grid.html", figures=[], name=name, series=series, rows=rows(series))
    files.write_for("--html", file, text.encode())
