"""Routes of the queue: jobs that were started from the page, their output, and starting a training."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from fastapi import APIRouter

from reelworks.annexes.page.context import Context, PageContext
from reelworks.annexes.page.jobs import PageJob
from reelworks.core import files, trust
from reelworks.core.errors import UserError
from reelworks.core.results import Json
from reelworks.demo import sample_recipe
from reelworks.training.recipe import recipe_file


def to_json(context: Context, job: PageJob) -> Json:
    """Return a job with its last error."""
    return asdict(job) | {"error": context.jobs.error(job) if job.state == "failed" else ""}


def add_job(context: Context, kind: str, title: str, arguments: Sequence[str], subject: str = "") -> Json:
    """Queue a command of `reelworks` in the first folder, and return its job."""
    return to_json(context, context.jobs.add(kind, title, arguments, context.workspace.roots[0], subject=subject))


def require_trust(recipe: Path) -> None:
    """Raise `UserError` for code that a recipe names and that was not agreed to yet: a job cannot ask."""
    for key, entries in _code_of(recipe):
        for path in trust.untrusted(entries):
            raise trust.refusal(path, key)


def _code_of(recipe: Path) -> list[tuple[str, list[str]]]:
    """Return the entries of a recipe that may name code, with their keys; nothing of one that is wrong, which training tells."""
    with suppress(UserError):
        return recipe_file.named_code(recipe_file.load(recipe))
    return []


routes = APIRouter()


@routes.get("/jobs")
def list_jobs(context: PageContext) -> list[Json]:
    return [to_json(context, job) for job in reversed(context.jobs.list())]


@routes.get("/jobs/{id}")
def get_job(context: PageContext, id: str) -> Json:
    return to_json(context, context.jobs.get(id)) | {"output": context.jobs.tail(id), "result": context.jobs.result(id)}


@routes.post("/jobs/{id}/stop")
def stop_job(context: PageContext, id: str) -> Json:
    return to_json(context, context.jobs.stop(id))


@routes.get("/recipes")
def list_recipes(context: PageContext) -> list[Json]:
    return [{"key": key, **context.workspace.about(path)} for key, path in context.workspace.index().recipes.items()]


@routes.post("/recipes/{key}/trust")
def trust_code(context: PageContext, key: str) -> None:
    """Trust the code that a recipe or a run's recipe names; no path comes from the browser."""
    trust.add(trust.untrusted(entry for _, entries in _code_of(context.workspace.recipe(key)) for entry in entries))


@routes.post("/recipes/{key}/train")
def train(context: PageContext, key: str) -> Json:
    path = context.workspace.recipe(key)
    require_trust(path)
    return add_job(context, "train", context.workspace.label(path), ("train", str(path)), key)


@routes.post("/sample")
def make_sample(context: PageContext) -> Json:
    """Make sample footage, and write the recipe for it, in the first folder."""
    recipe = context.workspace.roots[0] / "shapes.toml"
    if not recipe.exists():
        files.write_bytes(recipe, sample_recipe.path("first-run").read_bytes())
    return add_job(context, "demo-data", f"into {sample_recipe.FOOTAGE}", ("demo-data", sample_recipe.FOOTAGE))
