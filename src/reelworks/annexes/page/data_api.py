"""Clips of recipes and catalogs: lists, pictures, facts, and changes of captions and of what is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from reelworks.annexes.page import clip_changes, distributions, thumbnails
from reelworks.annexes.page.clips import EPOCH, SORTS, ClipView, query_of
from reelworks.annexes.page.context import Context, PageContext
from reelworks.annexes.page.jobs_api import add_job, to_json
from reelworks.annexes.page.library import DataSource
from reelworks.annexes.page.thumbnails import Kind
from reelworks.annexes.page.workspace import text_of
from reelworks.core import results
from reelworks.core.errors import UserError
from reelworks.core.results import Json
from reelworks.data.buckets.assign import Reason
from reelworks.data.catalog.store.companions import without
from reelworks.data.loader import decode_requests
from reelworks.data.loader.left_out import Rejection
from reelworks.reports.run_facts import REASONS
from reelworks.training.plan import rejections
from reelworks.training.recipe import dataset
from reelworks.training.recipe.dataset import RecipeData

_MOST_CLIPS = 400  # of a page
READ_AT_ONCE = 20_000  # clips of a recipe that is scanned or read again while the page waits


class NewCaption(BaseModel):
    """A caption to be written."""

    text: str = Field(max_length=100_000)


routes = APIRouter(prefix="/data")


def _source_of_key(context: PageContext, key: str) -> DataSource:
    return context.library.source(key)


def _clips_of_key(context: PageContext, key: str) -> ClipView:
    return context.library.clips(key)


Source = Annotated[DataSource, Depends(_source_of_key)]


def _recipe_source(source: Source) -> DataSource:
    if source.kind == "recipe":
        return source
    raise UserError(
        "clips are left out by a recipe",
        code="not-a-recipe",
        field="data",
        value=source.key,
        remedy="open the recipe of this data on the page",
    )


RecipeSource = Annotated[DataSource, Depends(_recipe_source)]
OpenClips = Annotated[ClipView, Depends(_clips_of_key)]


@routes.get("")
def list_data(context: PageContext) -> list[Json]:
    return context.library.list_rows()


@routes.get("/{key}")
def get_data(context: PageContext, key: str, source: Source) -> Json:
    about = _about(context, source)
    if not source.has_catalog:
        return about | {"state": "none", "version": 0, "reading": None}
    context.pictures.warm()
    state = context.library.state(key)
    if state["state"] != "ready":
        return about | state
    clips = context.library.clips(key)
    facets = [
        {"name": one.name, "label": one.label, "values": results.as_json(one.values), "counts": one.counts(None)}
        for one in clips.facets.values()
    ]
    roots = without(clips.data.rows).root.dictionary.to_pylist()
    outside = [root for root in roots if "://" in root or not context.workspace.holds(Path(root))]
    return about | state | {"clips": len(clips), "epoch": EPOCH, "facets": facets, "sorts": SORTS, "outside": outside}


@routes.get("/{key}/clips")
def list_clips(
    context: PageContext, key: str, clips: OpenClips, request: Request, offset: int = 0, limit: int = 100
) -> Json:
    selection = clips.select(_query(request, clips))
    rows = selection.rows[max(offset, 0) : max(offset, 0) + min(max(limit, 0), _MOST_CLIPS)]
    version = context.library.state(key)["version"]
    found = {"total": len(selection.rows), "version": version, "clips": lines(clips, rows)}
    return found | ({} if offset else {"counts": selection.counts})


@routes.get("/{key}/distributions")
def get_distributions(clips: OpenClips, request: Request) -> Json:
    return distributions.distributions(clips, clips.select(_query(request, clips)).rows)


@routes.get("/{key}/clips/{ordinal}")
def get_clip(context: PageContext, source: Source, clips: OpenClips, ordinal: int) -> Json:
    return _details(context, source, clips, clips.row_of(ordinal))


@routes.get("/{key}/clips/{ordinal}/{kind}.webp")
def get_picture(
    context: PageContext, clips: OpenClips, ordinal: int, kind: Kind, request: Request, companion: str | None = None
) -> Response:
    row = clips.row_of(ordinal)
    tag, asked = context.pictures.tag(clips, row, kind, companion)
    headers = {"ETag": f'"{tag}"', "Cache-Control": "private, no-cache"}
    if request.headers.get("if-none-match") == f'"{tag}"':
        return Response(status_code=304, headers=headers)
    data = context.pictures.picture(tag, asked, kind, thumbnails.milliseconds_of(clips, row, asked))
    return Response(data, media_type="image/webp", headers=headers)


@routes.post("/{key}/clips/{ordinal}/caption")
def write_caption(
    context: PageContext, key: str, source: Source, clips: OpenClips, ordinal: int, new: NewCaption
) -> Json:
    row = clips.row_of(ordinal)
    uid = clips.data.rows.uid[row]
    file = clip_changes.write_caption(context.workspace, clips, row, new.text)
    job, problem = _scan(context, source, len(clips))
    if job is None and problem is None:
        clips = context.library.clips(key, fresh=True)
        row = int(clips.data.rows.find(np.array([uid]))[0])
    found = {"file": context.workspace.label(file), "caption": new.text.strip(), "job": job, "problem": problem}
    return found | ({"clip": _details(context, source, clips, row)} if row >= 0 else {})


@routes.post("/{key}/clips/{ordinal}/leave-out")
def leave_out(context: PageContext, key: str, source: RecipeSource, clips: OpenClips, ordinal: int) -> Json:
    row = clips.row_of(ordinal)
    clip_changes.leave_out(context.workspace, source, clips, row)
    return _reread(context, key, clips, row, Reason.IN_EXCLUDE_FILE)


@routes.post("/{key}/clips/{ordinal}/take-back")
def take_back(context: PageContext, key: str, source: RecipeSource, clips: OpenClips, ordinal: int) -> Json:
    row = clips.row_of(ordinal)
    clip_changes.take_back(context.workspace, source, clips, row)
    return _reread(context, key, clips, row, Reason.NONE)


@routes.post("/{key}/scan")
def scan(context: PageContext, source: Source) -> Json:
    return _scan_job(context, source)


def _reread(context: Context, key: str, clips: ClipView, row: int, reason: Reason) -> Json:
    """Return a clip after a change; a large recipe shows it before it is read again as a whole."""
    ordinal = int(clips.data.rows.ordinal[row])
    if len(clips) <= READ_AT_ONCE:
        clips = context.library.clips(key, fresh=True)
    else:
        clips = clips.with_reason(row, reason)
        context.library.replace(key, clips)
    row = clips.row_of(ordinal)
    return _details(context, context.library.source(key), clips, row)


def _about(context: Context, source: DataSource) -> Json:
    workspace = context.workspace
    jobs = [job for job in context.jobs.list() if job.kind == "scan" and job.subject == source.key]
    job = jobs[-1] if jobs and jobs[-1].state in ("waiting", "running", "failed") else None
    if job is not None and job.ended is not None and job.ended < source.scanned:  # another scan has been there since
        job = None
    recipe, is_recipe = source.recipe, source.kind == "recipe"
    return {
        "key": source.key,
        "kind": source.kind,
        "name": text_of(source.file.stem if is_recipe else source.catalog.parent.name),
        "path": workspace.label(source.file),
        "datasets": [] if recipe is None else [{"name": d.dataset_name, "path": d.path} for d in recipe.dataset],
        "exclude_file": None if recipe is None else recipe.exclude_file,
        "job": None if job is None else to_json(context, job),
    }


def _query(request: Request, clips: ClipView) -> Any:
    return query_of({name: request.query_params.getlist(name) for name in request.query_params}, clips)


def lines(clips: ClipView, rows: Any) -> list[Json]:
    """Return what the list shows of some clips."""
    chosen, buckets = clips.data.rows.take(rows.astype(np.int64)), clips.data.table.buckets
    found = []
    for place, row in enumerate(rows.tolist()):
        reason = Reason(int(clips.reason[row]))
        bucket = buckets[int(clips.bucket[row])] if clips.bucket[row] >= 0 else None
        height, width = int(clips.data.rows.height[row]), int(clips.data.rows.width[row])
        shape = (bucket.shape.width, bucket.shape.height) if bucket else (width, height)
        choice = "planned" if reason.is_planned else "chosen" if reason.is_chosen else ""
        found.append(
            {
                "id": int(clips.data.rows.ordinal[row]),
                "path": chosen.label(place),
                "video": bool(clips.data.rows.is_video[row]),
                "shape": shape,
                "source": (width, height),
                "frames": int(clips.data.rows.num_frames[row]),
                "seconds": float(clips.data.rows.duration_seconds[row]),
                "bucket": bucket.name if bucket else None,
                "reason": None if reason == Reason.NONE else [reason.label, *REASONS[reason.label], choice],
                "lost": round(float(clips.lost[row]), 4),
                "caption": (chosen.caption[place].as_py() or "")[:300],
            }
        )
    return found


_FACTS = ("codec", "pixel_format", "bit_depth", "rotation", "pixel_aspect_ratio", "hdr", "sound", "color_matrix")
_FLAGS = ("variable_fps", "has_alpha", "mirrored", "interlaced", "full_range")


def _details(context: Context, source: DataSource, clips: ClipView, row: int) -> Json:
    data = clips.data
    few = data.rows.take(np.array([row]))
    line = lines(clips, np.array([row]))[0]
    place = clip_changes.caption_place(context.workspace, clips, row)
    facts = {name: getattr(few, name)[0] for name in _FACTS}
    facts = {name: value.as_py() if hasattr(value, "as_py") else value.item() for name, value in facts.items()}
    facts |= {name: True for name in _FLAGS if bool(getattr(few, name)[0])}
    return line | {
        "caption": few.caption[0].as_py(),
        "caption_source": place.source,
        "can_write_caption": place.file is not None and source.kind != "catalog",
        "shown_caption": _model_caption(clips, row),
        "can_leave_out": source.kind == "recipe",
        "file": str(few.file(0)),
        "bytes": int(few.size_bytes[0]),
        "fps": float(few.fps[0]),
        "dataset": few.dataset_name(0),
        "facts": facts,
        "why": _why(clips, row),
        "reading": _reading(clips, row),
        "companions": _companions(clips, row),
        "coverage": None if clips.coverage is None else clips.facets["coverage"].values[clips.coverage[row]].label,
    }


def _model_caption(clips: ClipView, row: int) -> str | None:
    """Return the caption that the model is given in the first epoch; None where the clip has none."""
    data = clips.data
    if not isinstance(data, RecipeData):
        return None
    config = decode_requests.dataset_of_row(data, row)
    if not data.rows.captioned[row] and config.missing_caption is None:
        return None
    at = np.array([row])
    words = decode_requests.clip_hash(data, at, clips.copy[row : row + 1], epoch=EPOCH)
    return decode_requests.captions_of(data, at, words)[0]


def _why(clips: ClipView, row: int) -> str | None:
    """Return the details of the reason why a clip is left out."""
    reason = Reason(int(clips.reason[row]))
    if reason == Reason.NONE:
        return None
    if not isinstance(clips.data, RecipeData):
        error: str | None = clips.data.rows.take(np.array([row])).error[0].as_py()
        return error
    one = Rejection(reason, np.array([row]), clips.nearest[row : row + 1])
    return rejections.named(clips.data, [one])[reason.label][0].detail or None


def _reading(clips: ClipView, row: int) -> Json | None:
    """Return the frames that training reads of a clip and the crop's place; None for one without a bucket."""
    if clips.bucket[row] < 0 or clips.data.rows.height[row] <= 0:
        return None
    request, bucket = thumbnails.training_request(clips, row), clips.data.table.buckets[int(clips.bucket[row])]
    first, (top, left, height, width), whole = thumbnails.place(clips, row, request)
    last = first + int((bucket.shape.num_frames - 1) * request.step + 1e-6)
    end = int(clips.data.rows.first_frame[row] + clips.data.rows.num_frames[row])
    window = {"left": left / whole.width, "width": width / whole.width}
    window |= {"top": top / whole.height, "height": height / whole.height}
    return {
        "window": window,
        "first": first,
        "last": min(last, end - 1),
        "of": end,
        "step": request.step,
        "frames": bucket.shape.num_frames,
        "size": f"{bucket.shape.width} × {bucket.shape.height}",
        "flip": request.augmentation.flip,
        "degrees": request.augmentation.degrees,
    }


def _companions(clips: ClipView, row: int) -> list[Json]:
    """Return the companions of a clip by kind, or what is wrong with them."""
    found = []
    for kind, companions in clips.data.companions.items():
        at = int(companions.row[row])
        problem = companions.explain(clips.data.rows, row) if companions.problem[row] else None
        path = str(companions.rows.file(at)) if at >= 0 else None
        if path is not None or problem is not None:
            found.append({"kind": kind, "path": path, "problem": problem, "heard": bool(companions.rows.is_sound[at])})
    return found


def _scan(context: Context, source: DataSource, clips: int) -> tuple[Json | None, str | None]:
    """Bring a recipe's catalog up to date; return the job that does it for a large one, and what went wrong."""
    assert source.recipe is not None
    try:
        if clips > READ_AT_ONCE:
            return _scan_job(context, source), None
        dataset.scan_recipe(source.recipe)
    except UserError as error:
        return None, f"{error.problem}; {error.remedy}"
    return None, None


def _scan_job(context: Context, source: DataSource) -> Json:
    if source.kind != "recipe":
        raise UserError(
            "only the data of a recipe can be scanned from the page",
            code="not-a-recipe",
            field="data",
            value=source.key,
            remedy="open the recipe of this data, or scan on the command line: reelworks scan DIR -o CATALOG",
        )
    title = context.workspace.label(source.file)
    return add_job(context, "scan", title, ("plan", str(source.file)), source.key)
