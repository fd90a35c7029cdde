"""Contact sheets of each bucket of a recipe, with an index page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from reelworks.analysis import contact_sheet, discarded, plan_report
from reelworks.analysis.contact_sheet import SampleView
from reelworks.core import files
from reelworks.data import position
from reelworks.recipe.dataset import RecipeData
from reelworks.recipe.recipe import Recipe
from reelworks.report import page, sheet
from reelworks.schedule.plan import Samples

Json = dict[str, Any]
WORST = 20


def write(recipe: Recipe, folder: Path, clips: int) -> Json:
    """Draw a sheet of some clips of each bucket that the first epoch trains, and `index.html`; the catalog must exist.

    Returns:
        {"index", "buckets": [{"name", "sheet", "clips", "mean_lost", "max_lost", "shown": [...]}], "worst": [...],
        "beside": kinds of the companions shown, "short_clips": number of videos that are shorter than their bucket}.

    Raises:
        UserError: No clip fits any bucket, or the folder cannot be written.
    """
    data = RecipeData.open(recipe)
    begun, _ = position.next_epoch(data, data.plan_spec(*plan_report.step_shape(recipe, 1)), None)
    entries = discarded.planned(begun.plan)
    lost = discarded.lost_shares(data, entries)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        buckets = [
            _bucket(data, entries.take(where), lost[where], begun.epoch, folder, clips)
            for index in np.unique(entries.bucket).tolist()
            for where in [np.flatnonzero(entries.bucket == index)]
        ]
        sheets: Json = {
            "index": str(folder / "index.html"),
            "buckets": buckets,
            "worst": discarded.worst(data, entries, lost, WORST),
        }
        sheets["beside"] = sorted(
            {companion["kind"] for b in buckets for clip in b["shown"] for companion in clip["beside"]}
        )
        sheets["short_clips"] = discarded.short_clips(data, entries)
        text = page.render("contact_sheet.html", figures=[], name=Path(recipe.output).name, sheets=sheets)
        files.write_bytes(folder / "index.html", text.encode())
    except OSError as error:
        raise sheet.unwritable(folder, error) from error
    return sheets


def _bucket(data: RecipeData, entries: Samples, lost: Any, epoch: int, folder: Path, clips: int) -> Json:
    bucket = data.table.buckets[int(entries.bucket[0])]
    chosen = contact_sheet.choose(data, entries, lost, clips)
    views = contact_sheet.sample_views(data, entries.take(chosen), lost[chosen], epoch=epoch)
    name = re.sub(r"[^\w.-]+", "-", bucket.name.replace("×", "x").replace(":", "by")).strip("-") + ".png"
    files.write_bytes(folder / name, sheet.draw(views, bucket.shape))
    return {
        "name": bucket.name,
        "shape": str(bucket.shape),
        "sheet": name,
        "clips": len(entries),
        "mean_lost": float(lost.mean()),
        "max_lost": float(lost.max()),
        "shown": [_shown(view) for view in views],
    }


def _shown(view: SampleView) -> Json:
    beside = [{"kind": companion.kind, "path": companion.path} for companion in view.beside]
    row: Json = {"path": view.path, "caption": view.caption, "error": view.error, "beside": beside}
    return {**row, "lost": view.lost, "first_frame": view.first_frame}
