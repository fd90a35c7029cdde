"""Limits of filters on the page: what they would do as they move, and writing them into a recipe."""

from __future__ import annotations

import math

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from reelworks.annexes.page import clip_changes, limits
from reelworks.annexes.page.clips import ClipView
from reelworks.annexes.page.context import PageContext
from reelworks.annexes.page.data_api import READ_AT_ONCE, OpenClips, RecipeSource, lines
from reelworks.annexes.page.limits import Side
from reelworks.core.errors import UserError
from reelworks.core.results import Json
from reelworks.data.catalog.filter_expression import ColumnRange

routes = APIRouter(prefix="/data")


class NewFilter(BaseModel):
    """A filter to be written into a recipe, and the one that the page showed before; None for none."""

    dataset: str
    filter: str | None = Field(default=None, max_length=100_000)
    former: str | None = None


@routes.get("/{key}/columns")
def list_columns(clips: OpenClips, dataset: str) -> list[Json]:
    return limits.list_columns(clips, dataset)


@routes.get("/{key}/limits")
def ask(clips: OpenClips, request: Request, dataset: str, moved: str | None = None) -> Json:
    """Return what limits would do; each is `limit=COLUMN:LEAST:MOST`, with nothing for a limit that is not set."""
    ranges = dict(_range(text) for text in request.query_params.getlist("limit"))
    found = limits.ask(clips, dataset, ranges, moved)
    sides = {name: _shown(clips, side) for name, side in (("least", found.least), ("most", found.most))}
    return {name: value for name, value in vars(found).items() if name not in sides} | sides


@routes.post("/{key}/filter")
def write_filter(context: PageContext, key: str, source: RecipeSource, clips: OpenClips, new: NewFilter) -> Json:
    """Write a filter; `ready` tells whether the clips have been read again with it, which takes longer for many."""
    clip_changes.write_filter(source, new.dataset, new.filter, new.former)
    is_small = len(clips) <= READ_AT_ONCE
    if is_small:
        context.library.clips(key, fresh=True)
    return {"filter": new.filter, "ready": is_small}


def _range(text: str) -> tuple[str, ColumnRange]:
    name, *ends = text.split(":")
    try:
        least, most = (float(end) if end else None for end in ends)
        if any(end is not None and not math.isfinite(end) for end in (least, most)):
            raise ValueError
    except ValueError:
        raise UserError(
            "this is no limit",
            code="value-not-allowed",
            field="limit",
            value=text[:100],
            remedy="give COLUMN:LEAST:MOST with finite numbers, or nothing for a limit that is not set",
        ) from None
    return name, ColumnRange(least, most)


def _shown(clips: ClipView, side: Side | None) -> Json | None:
    return None if side is None else {name: lines(clips, rows) for name, rows in vars(side).items()}
