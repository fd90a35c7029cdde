"""Draw what each bucket of a recipe will see, as contact sheets and an index page."""

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
from reelworks.schedule.plan import Entries

Json = dict[str, Any]
WORST = 20


def write(recipe: Recipe, folder: Path, clips: int) -> Json:
    """Draw a sheet for each bucket that the first epoch trains, and `index.html`; the catalog must be there.

    Args:
        recipe: What would be trained.
        folder: Where to write; former sheets of the same names are replaced.
        clips: Clips shown of each bucket.

    Returns:
        {"index", "buckets": [{"name", "sheet", "clips", "mean_lost", "max_lost", "shown": [...]}], "worst": [...],
        "beside": kinds of what is shown beside clips, "short_clips": videos that are shorter than their bucket}.

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
        told: Json = {
            "index": str(folder / "index.html"),
            "buckets": buckets,
            "worst": discarded.worst(data, entries, lost, WORST),
        }
        told["beside"] = sorted(
            {one["kind"] for b in buckets for look in b["shown"] for one in look["beside"]}
        )
        told["short_clips"] = discarded.short_clips(data, entries)
        text = page.render("contact_sheet.html", figures=[], name=Path(recipe.output).name, told=told)
        files.write_bytes(folder / "index.html", text.encode())
    except OSError as error:
        raise sheet.unwritable(folder, error) from error
    return told


def _bucket(data: RecipeData, entries: Entries, lost: Any, epoch: int, folder: Path, clips: int) -> Json:
    bucket = data.table.buckets[int(entries.bucket[0])]
    chosen = contact_sheet.choose(data, entries, lost, clips)
    looks = contact_sheet.sample_views(data, entries.take(chosen), lost[chosen], epoch=epoch)
    name = re.sub(r"[^\w.-]+", "-", bucket.name.replace("×", "x").replace(":", "by")).strip("-") + ".png"
    files.write_bytes(folder / name, sheet.draw(looks, bucket.shape))
    return {
        "name": bucket.name,
        "shape": str(bucket.shape),
        "sheet": name,
        "clips": len(entries),
        "mean_lost": float(lost.mean()),
        "max_lost": float(lost.max()),
        "shown": [_shown(look) for look in looks],
    }


def _shown(look: SampleView) -> Json:
    told: Json = {"path": look.path, "caption": look.caption, "error": look.error}
    told["beside"] = [{"kind": one.kind, "path": one.path} for one in look.beside]
    return {**told, "lost": look.lost, "first_frame": look.first_frame}
