"""Runs: what became of each, its curves, previews and checkpoints, and stopping and resuming it."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, StreamingResponse
from starlette.concurrency import run_in_threadpool

from reelworks.core.errors import UserError
from reelworks.report import plots
from reelworks.report.previews import MEDIA
from reelworks.run import lock
from reelworks.ui import comparing, runs
from reelworks.ui.context import Context
from reelworks.ui.jobs_api import require_trust, to_json

_FOLLOW_SECONDS = 0.5
_PING_SECONDS = 15.0


def router(context: Context) -> APIRouter:
    """Return the routes below /api."""
    routes = APIRouter()
    workspace = context.workspace

    @routes.get("/runs")
    def listed() -> list[dict[str, Any]]:
        rows = [runs.line(context, key, path) for key, path in workspace.found().runs.items()]
        return sorted(rows, key=lambda row: (row["state"] != "running", -row["changed"]))

    @routes.get("/runs/{key}")
    def one(key: str) -> dict[str, Any]:
        return runs.overview(context, key, workspace.run(key))

    @routes.get("/runs/{key}/figures")
    def figures(key: str) -> list[dict[str, Any]]:
        data = runs.data(context, workspace.run(key))
        return [plots.to_json(figure) for figure in plots.all_of(data)]

    @routes.get("/runs/{key}/coverage")
    def coverage(key: str) -> list[dict[str, Any]]:
        return runs.coverage(workspace.run(key))

    @routes.get("/runs/{key}/previews")
    def previews(key: str) -> list[dict[str, Any]]:
        return runs.previews(context, key, workspace.run(key))

    @routes.get("/runs/{key}/samples/{name:path}")
    def sample(key: str, name: str) -> FileResponse:
        folder = workspace.run(key).samples_folder
        path = (folder / name).resolve()
        if not (path.is_relative_to(folder.resolve()) and path.suffix.lower() in MEDIA and path.is_file()):
            raise UserError(
                "there is no such preview", code="not-found", field="preview", value=name, remedy="load the page again"
            )
        return FileResponse(path, media_type=MEDIA[path.suffix.lower()])

    @routes.get("/runs/{key}/follow")
    async def follow(key: str, request: Request) -> StreamingResponse:
        run = workspace.run(key)
        return StreamingResponse(_news(context, key, run.path, request), media_type="text/event-stream")

    @routes.get("/compare")
    def compared(runs: str) -> dict[str, Any]:
        return comparing.compare_runs(context, runs.split(","))

    @routes.post("/runs/{key}/stop")
    def stop(key: str) -> dict[str, Any]:
        run = workspace.run(key)
        owner = lock.holder(run.lock_file)
        if owner is None:
            raise UserError(
                "nothing trains in this folder",
                code="not-running",
                field="run",
                value=run.path.name,
                remedy="resume it",
            )
        if not lock.signal_holder(run.lock_file, signal.SIGTERM):
            raise UserError(
                f"{owner} trains it, which this page cannot reach",
                code="run-elsewhere",
                field="run",
                value=run.path.name,
                remedy="press Ctrl-C where it was started, or cancel its job there: it saves and ends",
            )
        return {"asked": owner.process.pid}

    @routes.post("/runs/{key}/resume")
    def resume(key: str) -> dict[str, Any]:
        run = workspace.run(key)
        require_trust(run.recipe_file)
        arguments = ("train", str(run.recipe_file), "--output", str(run.path))
        job = context.jobs.add("train", workspace.shown(run.path), arguments, workspace.roots[0], subject=key)
        return to_json(context, job)

    return routes


async def _news(context: Context, key: str, path: Path, request: Request) -> AsyncIterator[str]:
    """Yield what has changed in a run: its last step and state; a comment now and then keeps the connection."""
    former, quiet = "", 0.0
    while not await request.is_disconnected():
        now = json.dumps(await run_in_threadpool(runs.pulse, context, key, path))
        if now != former:
            former, quiet = now, 0.0
            yield f"data: {now}\n\n"
        elif quiet > _PING_SECONDS:
            quiet = 0.0
            yield ": still here\n\n"
        await asyncio.sleep(_FOLLOW_SECONDS)
        quiet += _FOLLOW_SECONDS
