"""Routes of the queue: jobs that were started from the page, their output, and starting a training."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastapi import APIRouter

from reelworks.core import files, trust, user_files
from reelworks.demo import sample_recipe
from reelworks.ui.context import Context
from reelworks.ui.jobs import Job


def to_json(context: Context, job: Job) -> dict[str, Any]:
    """Return a job with its last error."""
    return asdict(job) | {"error": context.jobs.error(job) if job.state == "failed" else ""}


def require_trust(recipe: Path) -> None:
    """Raise `UserError` for code that a recipe names and that was not agreed to yet: a job cannot ask."""
    for path in trust.untrusted(_code_of(recipe)):
        raise trust.refusal(path, "samples.metrics")


def _code_of(recipe: Path) -> list[str]:
    """Return the entries of a recipe that may name code; nothing of one that is wrong, which training tells."""
    try:
        metrics = user_files.read_toml(recipe)["samples"]["metrics"]
        return [entry for entry in metrics if isinstance(entry, str)]
    except (OSError, ValueError, LookupError, TypeError):
        return []


def router(context: Context) -> APIRouter:
    """Return the routes below /api."""
    routes = APIRouter()
    jobs, workspace = context.jobs, context.workspace

    @routes.get("/jobs")
    def listed() -> list[dict[str, Any]]:
        return [to_json(context, job) for job in reversed(jobs.list())]

    @routes.get("/jobs/{id}")
    def one(id: str) -> dict[str, Any]:
        return to_json(context, jobs.get(id)) | {"output": jobs.tail(id), "result": jobs.result(id)}

    @routes.post("/jobs/{id}/stop")
    def stop(id: str) -> dict[str, Any]:
        return to_json(context, jobs.stop(id))

    @routes.get("/recipes")
    def recipes() -> list[dict[str, Any]]:
        found = workspace.found().recipes
        return [{"key": key, "name": path.stem, "path": workspace.shown(path)} for key, path in found.items()]

    @routes.post("/recipes/{key}/trust")
    def agree(key: str) -> None:
        """Trust the code that a recipe or a run's recipe names; no path comes from the browser."""
        trust.add(trust.untrusted(_code_of(workspace.recipe(key))))

    @routes.post("/recipes/{key}/train")
    def train(key: str) -> dict[str, Any]:
        path = workspace.recipe(key)
        require_trust(path)
        arguments = ("train", str(path))
        return to_json(context, jobs.add("train", workspace.shown(path), arguments, workspace.roots[0], subject=key))

    @routes.post("/sample")
    def sample() -> dict[str, Any]:
        """Make sample footage, and write the recipe for it, in the first folder."""
        root = workspace.roots[0]
        recipe = root / "shapes.toml"
        if not recipe.exists():
            files.write_bytes(recipe, sample_recipe.path().read_bytes())
        title = f"into {sample_recipe.FOOTAGE}"
        return to_json(context, jobs.add("demo-data", title, ("demo-data", sample_recipe.FOOTAGE), root))

    return routes
