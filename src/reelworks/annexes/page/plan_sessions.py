"""Recipes whose plans are computed again while their settings are moved, with their catalogs open."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cachetools import LRUCache
from fastapi import Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from reelworks.annexes.page import datasets, file_status, recipe_files
from reelworks.annexes.page.datasets import Datasets
from reelworks.annexes.page.recipe_files import RecipeText
from reelworks.annexes.page.workspace import Workspace
from reelworks.core import results, toml_none
from reelworks.core.errors import UserError
from reelworks.core.results import Json
from reelworks.data.buckets.config import as_table
from reelworks.training.recipe import recipe_file
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.recipe.recipe import Recipe

_MOST_OPEN = 4  # datasets whose columns stay in memory
_CLOSED_REQUEST = 499


class Controls(BaseModel):
    """Positions of the page's controls.

    Attributes:
        batch_sizes: Clips per micro-batch of each frame count of each `[[bucket]]`, in the recipe's order.
        keep_probs: Probabilities in the same order.
        stage: Index of the recipe's stage that they belong to; 0 without stages.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    world: int = Field(default=1, ge=1, le=100_000)
    incomplete_batch: str = "partial"
    gradient_accumulation_steps: int = Field(default=1, ge=1, le=100_000)
    micro_batches_per_step: int | None = Field(default=None, ge=1, le=1_000_000)
    batch_sizes: tuple[int, ...] = ()
    keep_probs: tuple[float, ...] = ()
    stage: int = Field(default=0, ge=0)


class PlanSession:
    """A recipe whose catalog is open, with the positions that its file stands for.

    Attributes:
        recipe: The recipe as it is written, or one of its stages.
        latest: The dataset of the last positions, most of which the next ones have, too.
    """

    def __init__(self, text: RecipeText, recipe: Recipe, data: RecipeData, stage: int) -> None:
        self.text, self.recipe, self.data = text, recipe, data
        self.saved = controls_of(data.recipe, stage)
        self.latest = data

    def values(self, controls: Controls) -> Json:
        """Return the file's values with the controls at other positions; what did not move stays as it is written."""
        whole, saved = copy.deepcopy(self.text.values), self.saved
        values = whole["stage"][saved.stage] if whole.get("stage") else whole  # a stage's own keys come before all
        if controls.incomplete_batch != saved.incomplete_batch:
            values["buckets"] = {**as_table(values.get("buckets", {})), "incomplete_batch": controls.incomplete_batch}
        for key in ("gradient_accumulation_steps", "micro_batches_per_step"):
            if (value := getattr(controls, key)) != getattr(saved, key):
                values.setdefault("train", {})[key] = toml_none.WORD if value is None else value
        sizes, chances = controls.batch_sizes, controls.keep_probs
        if len(sizes) != len(saved.batch_sizes) or len(chances) != len(saved.keep_probs):
            raise invalid_controls("the recipe has other entries now", "load the page again")
        if (sizes, chances) != (saved.batch_sizes, saved.keep_probs):
            if self.data.chosen is not None:
                _write_chosen(values, self.data.recipe, sizes, chances)
            else:
                values.setdefault("bucket", copy.deepcopy(whole.get("bucket")))
                _write_entries(values, self.data.recipe, controls, saved)
        return whole

    def move(self, controls: Controls) -> RecipeData:
        """Return the dataset with the controls at other positions."""
        values = self.values(controls)
        if values == self.text.values:
            return self.data
        self.latest = self.latest.with_buckets(self.parse(values))
        return self.latest

    def parse(self, values: Json) -> Recipe:
        """Make a recipe of the file's values with changes."""
        return stage_of(recipe_files.parse(values, self.text.path), self.saved.stage)


def stage_of(recipe: Recipe, stage: int) -> Recipe:
    """Return the recipe of a stage by its index; the recipe itself if it has none."""
    return recipe_file.of_stage(recipe, stage) if recipe.stage else recipe


def controls_of(recipe: Recipe, stage: int) -> Controls:
    """Return the positions that a recipe stands for, with numbers for all batch sizes."""
    sizes = [size or recipe.buckets.batch_size for entry in recipe.bucket for size in entry.batch_sizes()]
    return Controls(
        world=recipe.parallel.group_size,
        incomplete_batch=recipe.buckets.incomplete_batch,
        gradient_accumulation_steps=recipe.train.gradient_accumulation_steps,
        micro_batches_per_step=recipe.train.micro_batches_per_step,
        batch_sizes=tuple(int(size) for size in sizes),
        keep_probs=tuple(chance for entry in recipe.bucket for chance in entry.keep_probs()),
        stage=stage,
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


class PlanSessions:
    """The recipes that are open, and the turn of the requests that compute with them."""

    def __init__(self, workspace: Workspace, opened: Datasets) -> None:
        self._workspace, self._datasets = workspace, opened
        self._sessions: LRUCache[tuple[str, int], PlanSession] = LRUCache(_MOST_OPEN)
        self._lock = threading.Lock()
        self._turn = asyncio.Lock()

    def open(self, key: str, stage: int = 0) -> PlanSession:
        """Return a recipe or one of its stages with its catalog, read again if either has changed."""
        text = recipe_files.read(self._workspace, key)
        stage = min(stage, max(len(text.values.get("stage", ())) - 1, 0))
        with self._lock:
            known = self._sessions.get((key, stage))
            if known is not None and known.text.text != text.text:
                known = None
            recipe = stage_of(text.recipe, stage) if known is None else known.recipe
            if not self.is_scanned(recipe):
                raise UserError(
                    "the footage was not scanned yet",
                    code="no-catalog",
                    field="catalog",
                    value=recipe.catalog_folder,
                    remedy="scan it: reelworks plan RECIPE",
                )
            data = self._datasets.open(recipe, Path(recipe.catalog_folder))
            if known is None or known.data is not data:
                known = self._sessions[key, stage] = PlanSession(text, recipe, data, stage)
            return known

    def is_scanned(self, recipe: Recipe) -> bool:
        """Return whether a recipe's catalog exists; raises `UserError` if it lies outside of the folders."""
        catalog = self._workspace.require(Path(recipe.catalog_folder))
        return file_status.status(catalog / datasets.CATALOG_FILE) is not None

    async def answer(self, request: Request, compute: Callable[[], Any]) -> Response:
        """Compute one request at a time; those that the page has given up meanwhile are not computed."""
        async with self._turn:
            if await request.is_disconnected():
                return Response(status_code=_CLOSED_REQUEST)
            return JSONResponse(results.as_json(await run_in_threadpool(compute)))


def invalid_controls(problem: str, remedy: str, field: str = "controls", value: object = None) -> UserError:
    """Return the error for positions that no recipe can have."""
    return UserError(problem, code="controls-invalid", field=field, value=value, remedy=remedy)
