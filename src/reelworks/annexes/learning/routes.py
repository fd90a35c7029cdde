"""Words for the clips of a run, with what the page needs to show them and to leave them out."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Literal

from fastapi import APIRouter

from reelworks.annexes.learning.learning import Learning
from reelworks.annexes.page import file_status
from reelworks.annexes.page.clips import ClipView
from reelworks.annexes.page.context import Context, PageContext, PageRun
from reelworks.annexes.page.file_status import FileStatus
from reelworks.core import results
from reelworks.core.arrays import U64
from reelworks.core.errors import UserError
from reelworks.core.results import Json
from reelworks.data.buckets.assign import Reason
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.run.folder import RunFolder

Sort = Literal["worst", "loss", "trend", "gain", "path"]
_MOST_CLIPS = 1000  # of an answer

routes = APIRouter()


@routes.get("/runs/{key}/learning")
def get_learning(
    context: PageContext, key: str, run: PageRun, word: str = "", sort: Sort = "worst", offset: int = 0, limit: int = 60
) -> Json:
    """Return clips of a run in an order, all of them or those with a word, and the counts of all; empty without losses."""
    saved = CheckpointFolder(run.checkpoints_folder)
    try:
        known = _learning(str(run.path), tuple(file_status.status(saved.path(step)) for step in saved.steps()))
    except UserError as error:
        if error.code != "no-clip-losses":
            raise
        return {"counts": {}, "total": 0, "clips": [], "step": 0, "data": key, "can_leave_out": False}
    places = known.places(sort, [word] if word else [])
    page = places[max(offset, 0) :][: min(max(limit, 0), _MOST_CLIPS)]
    data, can_leave_out = _data_of(context, key, run)
    shown = [results.as_json(clip) | {"id": None, "is_left_out": False} for clip in known.clips(page)]
    if (view := _view(context, data)) is not None:
        for found, named, ordinal in known.located(page):
            _add_rows(view, [shown[i] for i in found.tolist()], named.uids[ordinal])
    counts = {"counts": known.counts, "total": len(places), "step": known.table.about.step}
    return counts | {"clips": shown, "data": data, "can_leave_out": can_leave_out}


@lru_cache(maxsize=4)
def _learning(path: str, _: tuple[FileStatus, ...]) -> Learning:
    return Learning.of_run(RunFolder(Path(path)))


def _data_of(context: Context, key: str, run: RunFolder) -> tuple[str, bool]:
    """Return the key by which clips are left out: of the run's recipe, or else of one with its catalog, or else of the run."""
    shared = None
    for recipe in context.workspace.index().recipes:
        if recipe == key:
            continue
        try:
            source = context.library.source(recipe)
        except UserError:
            continue
        if source.recipe is None or source.kind != "recipe":
            continue
        if Path(source.recipe.output).resolve() == run.path.resolve():
            return recipe, True
        if shared is None and run.path.resolve() in [path.resolve() for path in source.runs]:
            shared = recipe
    return shared or key, shared is not None


def _view(context: Context, key: str) -> ClipView | None:
    try:
        return context.library.clips(key)
    except UserError:  # they cannot be shown now, and what was learnt of them can
        return None


def _add_rows(view: ClipView, clips: list[Json], uids: U64) -> None:
    """Add the number by which a clip's pictures are asked for, and whether it is left out."""
    for clip, row in zip(clips, view.data.rows.find(uids).tolist(), strict=True):
        if row >= 0:
            clip["id"] = int(view.data.rows.ordinal[row])
            clip["is_left_out"] = bool(view.reason[row] == Reason.IN_EXCLUDE_FILE)
