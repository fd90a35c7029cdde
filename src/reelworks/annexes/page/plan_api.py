"""Plans of recipes, computed again while their settings are moved: buckets, waste, what no epoch trains, proposals."""

from __future__ import annotations

import threading
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import tomli_w
from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ValidationError

from reelworks.annexes.page import recipe_files, understood
from reelworks.annexes.page.context import Context, PageContext
from reelworks.annexes.page.jobs_api import add_job
from reelworks.annexes.page.plan_sessions import Controls, PlanSession, invalid_controls
from reelworks.annexes.page.recipe_files import SaveForm
from reelworks.core import digests, files
from reelworks.core.errors import UserError
from reelworks.core.results import Json
from reelworks.data.buckets.opensora.parse import MOST_CLIPS
from reelworks.data.loader.left_out import Rejection, by_reason
from reelworks.reports import run_facts
from reelworks.training.plan import plan_forecast, rejections
from reelworks.training.plan.rejections import LeftOutClip
from reelworks.training.recipe import toml_text
from reelworks.training.recipe.dataset import RecipeData

_FILES_NAMED = 20
_checking = threading.Lock()  # from a recipe's file to its job, without which the next one removes the file


class Check(BaseModel):
    """A request to check a recipe with the controls at some positions."""

    controls: Controls


class Save(SaveForm):
    """A request to save the controls."""

    controls: Controls


routes = APIRouter(prefix="/plan")


@routes.get("")
def list_plans(context: PageContext) -> list[Json]:
    return [_row(context, key, path) for key, path in context.workspace.index().recipes.items()]


@routes.get("/{key}")
def get_plan(context: PageContext, key: str, stage: Annotated[int, Query(ge=0)] = 0) -> Json:
    """Return what the page shows before the first plan: entries, buckets and the positions of the controls."""
    text = recipe_files.read(context.workspace, key)
    recipe = text.recipe
    about = recipe_files.about(context.workspace, key, text) | {
        "model": recipe.model.name,
        "output": recipe.output,
        "catalog": recipe.catalog_folder,
        "scanned": context.plans.is_scanned(recipe),
        "most_clips": MOST_CLIPS,
        "stages": [each.name for each in recipe.stage],
        "reasons": {name: label for name, (label, _) in run_facts.REASONS.items()},
    }
    if not about["scanned"]:
        return about
    session = context.plans.open(key, stage)
    data = session.data
    given = [(entry.resolution, frames) for entry in data.recipe.bucket for frames in entry.frames()]
    place = {shape: given.index(shape) for shape in given}  # among the controls
    return about | {
        "controls": session.saved.model_dump(mode="json"),
        "degree": data.recipe.parallel.group_size,
        "chosen": None if data.chosen is None else data.chosen.lines,
        "entries": [
            {name: getattr(entry, name) for name in ("resolution", "num_frames", "pixels")}
            | {"label": str(entry), "place": place.get((entry.resolution, entry.num_frames))}
            for entry in data.table.entries
        ],
        "buckets": [
            {name: getattr(b, name) for name in ("name", "entry", "ratio", "tokens", "sequence_degree")}
            | asdict(b.shape)
            for b in data.table.buckets
        ],
    }


@routes.post("/{key}/save")
def save(context: PageContext, key: str, wish: Save) -> Json:
    session = context.plans.open(key, wish.controls.stage)
    values = session.values(wish.controls)
    session.parse(values)
    text = toml_text.rewrite(session.text.text, values)
    return recipe_files.save(context.workspace, session.text, text, values, wish)


@routes.post("/{key}/scan")
def scan(context: PageContext, key: str) -> Json:
    path = context.workspace.recipe(key)
    return add_job(context, "scan", context.workspace.label(path), ("plan", str(path)), key)  # it scans first


@routes.post("/{key}/check")
def check(context: PageContext, key: str, wish: Check) -> Json:
    session = context.plans.open(key, wish.controls.stage)
    stages = session.text.recipe.stage
    chosen = ("--set", f"stage={stages[session.saved.stage].name}") if stages else ()
    with _checking:
        path = _write_checked(context, session, session.values(wish.controls))
        arguments = ("check", str(path), "--world", str(wish.controls.world), *chosen, "--json")
        return add_job(context, "check", context.workspace.label(session.text.path), arguments, key)


@routes.get("/{key}/{part}")
async def compute(
    context: PageContext, key: str, part: Literal["outline", "advice", "reasons"], controls: str, request: Request
) -> Response:
    """Return a part of the plan with the controls at some positions."""
    try:
        asked, plans = Controls.model_validate_json(controls), context.plans
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise invalid_controls(first["msg"], "give a number in its range", field, first["input"]) from None
    of_part = {"outline": plan_forecast.outline, "advice": plan_forecast.advice, "reasons": _name_left_out}[part]
    return await plans.answer(request, lambda: of_part(plans.open(key, asked.stage).move(asked), asked.world))


def _row(context: Context, key: str, path: Path) -> Json:
    """Return a recipe's line in the list: what it trains, and whether it can be planned."""
    row: Json = {"key": key, **context.workspace.about(path), "problem": "", "scanned": False}
    try:
        with understood.reading(path):
            recipe = recipe_files.read(context.workspace, key).recipe
        row["scanned"] = context.plans.is_scanned(recipe)
    except UserError as error:
        return row | {"problem": str(error)}
    entries = [f"{entry.resolution} ×{frames}" for entry in recipe.bucket for frames in entry.frames()]
    return row | {"model": recipe.model.name, "entries": entries}


def _name_left_out(data: RecipeData, world: int) -> dict[str, list[LeftOutClip]]:
    """Return the first clips that the first epoch leaves out, by reason."""
    left_out = by_reason(*data.assignment(plan_forecast.begun(data, world)[2].epoch))
    few = [Rejection(r.reason, r.row[:_FILES_NAMED], r.nearest[:_FILES_NAMED]) for r in left_out]
    return rejections.named(data, few)


def _write_checked(context: Context, session: PlanSession, values: Json) -> Path:
    """Write a recipe that is only checked, into the page's own folder; it has the output of the original.

    Its name tells its text from any other, since equal commands are one job. Former ones that no job reads are removed.
    """
    recipe = session.parse(values)
    text = tomli_w.dumps(values | {"output": recipe.output}).encode()
    folder = context.workspace.state_folder / "checked"
    folder.mkdir(parents=True, exist_ok=True)
    read = {argument for job in context.jobs.list() if job.ended is None for argument in job.arguments}
    for former in folder.iterdir():
        if str(former) not in read:
            former.unlink()
    path = folder / f"{session.text.path.stem}-{digests.digest_bytes(text)[:16]}.toml"
    files.write_bytes(path, text)
    return path
