"""Routes of the queue: jobs that were started from the page, their output, and starting a training."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter

from reelworks.ui.context import Context
from reelworks.ui.jobs import Job


def to_json(context: Context, job: Job) -> dict[str, Any]:
    """Return a job with its last error."""
    return asdict(job) | {"error": context.jobs.error(job) if job.state == "failed" else ""}


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

    @routes.post("/recipes/{key}/train")
    def train(key: str) -> dict[str, Any]:
        path = workspace.recipe(key)
        arguments = ("train", str(path))
        return to_json(context, jobs.add("train", workspace.shown(path), arguments, workspace.roots[0], subject=key))

    return routes
