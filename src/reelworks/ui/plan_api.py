"""Plans of recipes, computed again while their settings are moved: buckets, waste, what no epoch trains, proposals."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tomli_w
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.concurrency import run_in_threadpool

from reelworks.analysis import plan_report, rejections
from reelworks.buckets.config import as_table
from reelworks.buckets.opensora.parse import MOST_CLIPS
from reelworks.buckets.table import Entry
from reelworks.core import files, toml_none
from reelworks.core.errors import UserError
from reelworks.data.left_out import Rejection, by_reason
from reelworks.recipe import toml_text
from reelworks.recipe.dataset import RecipeData
from reelworks.recipe.recipe import Recipe
from reelworks.report import run_facts
from reelworks.ui import recipe_files, understood
from reelworks.ui.context import Context
from reelworks.ui.jobs_api import to_json
from reelworks.ui.recipe_files import RecipeText
from reelworks.ui.workspace import key_of

Json = dict[str, Any]
_MOST_OPEN = 4  # datasets whose columns stay in memory
_FILES_NAMED = 20
_CLOSED_REQUEST = 499
_CATALOG_FILE = "catalog.json"


class Controls(BaseModel):
    """Positions of the page's controls.

    Attributes:
        batch_sizes: Clips per micro-batch of each frame count of each `[[bucket]]`, in the recipe's order.
        keep_probs: Probabilities in the same order.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    world: int = Field(default=1, ge=1, le=100_000)
    incomplete_batch: str = "partial"
    gradient_accumulation_steps: int = Field(default=1, ge=1, le=100_000)
    micro_batches_per_step: int | None = Field(default=None, ge=1, le=1_000_000)
    batch_sizes: tuple[int, ...] = ()
    keep_probs: tuple[float, ...] = ()


class Check(BaseModel):
    """A request to check a recipe with the controls at some positions."""

    controls: Controls


class Save(BaseModel):
    """A request to save the controls: into the recipe, or as a new one of the given name."""

    controls: Controls
    digest: str
    name: str | None = None
    overwrite: bool = False


class Opened:
    """A recipe whose catalog is open, with the positions that its file stands for.

    Attributes:
        latest: The dataset of the last positions, most of which the next ones have, too.
    """

    def __init__(self, text: RecipeText, data: RecipeData) -> None:
        self.text, self.data = text, data
        self.saved = controls_of(data.recipe)
        self.latest = data

    def values(self, controls: Controls) -> Json:
        """Return the file's values with the controls at other positions; what did not move stays as it is written."""
        values, saved = copy.deepcopy(self.text.values), self.saved
        if controls.incomplete_batch != saved.incomplete_batch:
            values["buckets"] = {**as_table(values.get("buckets", {})), "incomplete_batch": controls.incomplete_batch}
        for key in ("gradient_accumulation_steps", "micro_batches_per_step"):
            if (value := getattr(controls, key)) != getattr(saved, key):
                values.setdefault("train", {})[key] = toml_none.WORD if value is None else value
        sizes, chances = controls.batch_sizes, controls.keep_probs
        if len(sizes) != len(saved.batch_sizes) or len(chances) != len(saved.keep_probs):
            raise _bad_controls("the recipe has other entries now", "load the page again")
        if (sizes, chances) != (saved.batch_sizes, saved.keep_probs):
            if self.data.chosen is not None:
                _write_chosen(values, self.data.recipe, sizes, chances)
            else:
                _write_entries(values, self.data.recipe, controls, saved)
        return values

    def moved(self, controls: Controls) -> RecipeData:
        """Return the dataset with the controls at other positions."""
        values = self.values(controls)
        if values == self.text.values:
            return self.data
        self.latest = self.latest.with_buckets(self.parse(values))
        return self.latest

    def parse(self, values: Json) -> Recipe:
        """Make a recipe of the file's values with changes."""
        return recipe_files.parse(values, self.text.path)


def controls_of(recipe: Recipe) -> Controls:
    """Return the positions that a recipe stands for, with numbers for all batch sizes."""
    sizes = [size or recipe.buckets.batch_size for entry in recipe.bucket for size in entry.batch_sizes()]
    return Controls(
        world=recipe.parallel.sequence_degree,
        incomplete_batch=recipe.buckets.incomplete_batch,
        gradient_accumulation_steps=recipe.train.gradient_accumulation_steps,
        micro_batches_per_step=recipe.train.micro_batches_per_step,
        batch_sizes=tuple(int(size) for size in sizes),
        keep_probs=tuple(chance for entry in recipe.bucket for chance in entry.keep_probs()),
    )


def _write_entries(values: Json, recipe: Recipe, controls: Controls, saved: Controls) -> None:
    """Write batch sizes and probabilities that moved into the `[[bucket]]` entries."""
    first = 0
    for written, entry in zip(values["bucket"], recipe.bucket, strict=True):
        count = len(entry.frames())
        mine = slice(first, first + count)
        first += count
        for key, now, then in (
            ("batch_size", saved.batch_sizes[mine], controls.batch_sizes[mine]),
            ("keep_prob", saved.keep_probs[mine], controls.keep_probs[mine]),
        ):
            if now != then:
                equal = len(set(then)) == 1 and not isinstance(written.get(key), list)
                written[key] = then[0] if equal else list(then)


def _write_chosen(values: Json, recipe: Recipe, sizes: tuple[int, ...], chances: tuple[float, ...]) -> None:
    """Write the entries that were chosen, with other numbers, as entries of the recipe's own."""
    shapes = [(entry.resolution, frames) for entry in recipe.bucket for frames in entry.frames()]
    keys = ("resolution", "num_frames", "batch_size", "keep_prob")
    rows = zip(shapes, sizes, chances, strict=True)
    values["bucket"] = [dict(zip(keys, (*shape, size, chance), strict=True)) for shape, size, chance in rows]
    values["buckets"] = {k: v for k, v in as_table(values.get("buckets", {})).items() if k != "entries"}


class Desk:
    """The datasets that are open, and the turn of the requests that compute with them."""

    def __init__(self, context: Context) -> None:
        self._workspace = context.workspace
        self._open: OrderedDict[str, tuple[int, Opened]] = OrderedDict()
        self._lock = threading.Lock()
        self._turn = asyncio.Lock()

    def opened(self, key: str) -> Opened:
        """Return a recipe with its catalog, read again if either has changed."""
        text = recipe_files.read(self._workspace, key)
        with self._lock:
            known = self._open.get(key)
            is_same = known is not None and known[1].text.text == text.text
            recipe = known[1].data.recipe if known is not None and is_same else text.recipe
            version = self._version(recipe)
            if known is None or not is_same or known[0] != version:
                data = RecipeData.open(text.recipe)
                known = version, Opened(text, data)
                self._open[key] = known
            self._open.move_to_end(key)
            while len(self._open) > _MOST_OPEN:
                self._open.popitem(last=False)
            return known[1]

    def _version(self, recipe: Recipe) -> int:
        """Return the time of a recipe's catalog; raises `UserError` if there is none."""
        if not self.is_scanned(recipe):
            raise UserError(
                "the footage was not scanned yet",
                code="no-catalog",
                field="catalog",
                value=recipe.catalog_folder,
                remedy="scan it: reelworks plan RECIPE",
            )
        return (Path(recipe.catalog_folder) / _CATALOG_FILE).stat().st_mtime_ns

    def is_scanned(self, recipe: Recipe) -> bool:
        """Return whether a recipe's catalog exists; raises `UserError` if it lies outside of the folders."""
        return (self._workspace.require(Path(recipe.catalog_folder)) / _CATALOG_FILE).exists()

    async def answer(self, request: Request, compute: Callable[[], Json]) -> Response:
        """Compute one request at a time; those that the page has given up meanwhile are not computed."""
        async with self._turn:
            if await request.is_disconnected():
                return Response(status_code=_CLOSED_REQUEST)
            return JSONResponse(await run_in_threadpool(compute))


def router(context: Context) -> APIRouter:
    """Return the routes below /api/plan."""
    routes = APIRouter(prefix="/plan")
    workspace, desk = context.workspace, Desk(context)

    @routes.get("")
    def listed() -> list[Json]:
        return [_row(context, desk, key, path) for key, path in workspace.found().recipes.items()]

    @routes.get("/{key}")
    def one(key: str) -> Json:
        return _about(context, desk, key)

    @routes.get("/{key}/outline")
    async def outline(key: str, controls: str, request: Request) -> Response:
        asked = _read(controls)
        return await desk.answer(request, lambda: plan_report.outline(desk.opened(key).moved(asked), asked.world))

    @routes.get("/{key}/advice")
    async def advice(key: str, controls: str, request: Request) -> Response:
        asked = _read(controls)
        return await desk.answer(request, lambda: plan_report.advice(desk.opened(key).moved(asked), asked.world))

    @routes.get("/{key}/reasons")
    async def reasons(key: str, controls: str, request: Request) -> Response:
        asked = _read(controls)
        return await desk.answer(request, lambda: _named(desk.opened(key).moved(asked)))

    @routes.post("/{key}/save")
    def save(key: str, wish: Save) -> Json:
        opened = desk.opened(key)
        values = opened.values(wish.controls)
        opened.parse(values)
        if wish.name is not None:
            path = recipe_files.save_as(workspace, opened.text, values, wish.name, overwrite=wish.overwrite)
            return {"key": key_of(path), "path": workspace.shown(path)}
        recipe_files.save(opened.text, toml_text.rewrite(opened.text.text, values), wish.digest)
        return {"key": key, "path": workspace.shown(opened.text.path)}

    @routes.post("/{key}/scan")
    def scan(key: str) -> Json:
        path = workspace.recipe(key)
        arguments = ("plan", str(path))  # it scans first
        return to_json(
            context, context.jobs.add("scan", workspace.shown(path), arguments, workspace.roots[0], subject=key)
        )

    @routes.post("/{key}/check")
    def check(key: str, wish: Check) -> Json:
        opened = desk.opened(key)
        path = _written(context, opened, opened.values(wish.controls))
        arguments = ("check", str(path), "--world", str(wish.controls.world), "--json")
        name = workspace.shown(opened.text.path)
        return to_json(context, context.jobs.add("check", name, arguments, workspace.roots[0], subject=key))

    return routes


def _read(controls: str) -> Controls:
    try:
        return Controls.model_validate_json(controls)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise _bad_controls(first["msg"], "give a number in its range", field, first["input"]) from None


def _bad_controls(problem: str, remedy: str, field: str = "controls", value: object = None) -> UserError:
    return UserError(problem, code="controls-invalid", field=field, value=value, remedy=remedy)


def _row(context: Context, desk: Desk, key: str, path: Path) -> Json:
    """Return a recipe's line in the list: what it trains, and whether it can be planned."""
    row: Json = {"key": key, "name": path.stem, "path": context.workspace.shown(path), "problem": "", "scanned": False}
    try:
        with understood.reading(path):
            recipe = recipe_files.read(context.workspace, key).recipe
        row["scanned"] = desk.is_scanned(recipe)
    except UserError as error:
        return row | {"problem": str(error)}
    entries = [f"{entry.resolution} ×{frames}" for entry in recipe.bucket for frames in entry.frames()]
    return row | {"model": recipe.model.name, "entries": entries}


def _about(context: Context, desk: Desk, key: str) -> Json:
    """Return what the page shows before the first plan: entries, buckets and the positions of the controls."""
    text = recipe_files.read(context.workspace, key)
    recipe = text.recipe
    about: Json = {
        "key": key,
        "name": text.name,
        "path": context.workspace.shown(text.path),
        "is_of_run": text.is_of_run,
        "digest": text.digest,
        "model": recipe.model.name,
        "output": recipe.output,
        "catalog": recipe.catalog_folder,
        "scanned": desk.is_scanned(recipe),
        "most_clips": MOST_CLIPS,
        "reasons": {name: label for name, (label, _) in run_facts.REASONS.items()},
    }
    if not about["scanned"]:
        return about
    opened = desk.opened(key)
    data = opened.data
    given = [(entry.resolution, frames) for entry in data.recipe.bucket for frames in entry.frames()]
    return about | {
        "controls": opened.saved.model_dump(mode="json"),
        "degree": data.recipe.parallel.sequence_degree,
        "chosen": None if data.chosen is None else data.chosen.lines(),
        "entries": [_entry(entry, given) for entry in data.table.entries],
        "buckets": [
            {"name": b.name, "entry": b.entry, "ratio": b.ratio, "tokens": b.tokens, **asdict(b.shape)}
            for b in data.table.buckets
        ],
    }


def _entry(entry: Entry, given: list[tuple[str, int]]) -> Json:
    """Return an entry, with its place among the controls; None if the recipe does not list it."""
    place = None
    with suppress(ValueError):
        place = given.index((entry.resolution, entry.num_frames))
    return {
        "label": str(entry),
        "resolution": entry.resolution,
        "num_frames": entry.num_frames,
        "pixels": entry.pixels,
        "place": place,
    }


def _named(data: RecipeData) -> Json:
    """Return the first clips that the first epoch leaves out, by reason."""
    left_out = by_reason(*data.assignment(0))
    few = [Rejection(r.reason, r.row[:_FILES_NAMED], r.nearest[:_FILES_NAMED]) for r in left_out]
    return rejections.named(data, few)


def _written(context: Context, opened: Opened, values: Json) -> Path:
    """Write a recipe that is only checked, into the page's own folder; it has the output of the original."""
    recipe = opened.parse(values)
    text = tomli_w.dumps(values | {"output": recipe.output})
    path = context.workspace.state_folder / "checked" / f"{opened.text.path.stem}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_bytes(path, text.encode())
    return path
