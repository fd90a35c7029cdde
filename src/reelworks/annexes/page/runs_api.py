"""Runs: what became of each, its curves, previews and checkpoints, stopping and resuming it, and several side by side."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, StreamingResponse
from starlette.concurrency import run_in_threadpool

from reelworks.annexes.page import runs
from reelworks.annexes.page.context import Context, PageContext, PageRun
from reelworks.annexes.page.jobs_api import add_job, require_trust
from reelworks.core import results
from reelworks.core.errors import UserError
from reelworks.core.results import Json
from reelworks.data.run import lock
from reelworks.reports import compare, plots
from reelworks.reports.previews import MEDIA

_FOLLOW_SECONDS = 0.5
_PING_SECONDS = 15.0
_MOST_COMPARED = 8


routes = APIRouter()
routes.get("/runs/{key}")(runs.overview)
routes.get("/runs/{key}/coverage")(runs.coverage)
routes.get("/runs/{key}/previews")(runs.previews)
routes.get("/runs/{key}/measured")(runs.measured)


@routes.get("/runs")
def list_runs(context: PageContext) -> list[Json]:
    jobs = runs.jobs_of_runs(context)
    rows = [runs.line(context, key, path, jobs) for key, path in context.workspace.index().runs.items()]
    return sorted(rows, key=lambda row: (row["state"] != "running", -row["changed"]))


@routes.get("/runs/{key}/figures")
def get_figures(context: PageContext, run: PageRun) -> list[Json]:
    return [results.as_json(figure) for figure in plots.all_of(runs.data(context, run))]


@routes.get("/runs/{key}/samples/{name:path}")
def get_sample(run: PageRun, name: str) -> FileResponse:
    return _generated(run.samples_folder, name)


@routes.get("/runs/{key}/evaluations/{name:path}")
def get_measured_clip(run: PageRun, name: str) -> FileResponse:
    return _generated(run.evaluations_folder, name)


def _generated(folder: Path, name: str) -> FileResponse:
    path = (folder / name).resolve()
    if not (path.is_relative_to(folder.resolve()) and path.suffix.lower() in MEDIA and path.is_file()):
        raise UserError(
            "there is no such preview", code="not-found", field="preview", value=name, remedy="load the page again"
        )
    return FileResponse(path, media_type=MEDIA[path.suffix.lower()])


@routes.get("/runs/{key}/follow")
async def follow_run(context: PageContext, key: str, _: PageRun, request: Request) -> StreamingResponse:
    return StreamingResponse(_news(context, key, request), media_type="text/event-stream")


@routes.get("/compare")
def compare_runs(context: PageContext, runs: str) -> Json:
    return _compared(context, runs.split(","))


@routes.post("/runs/{key}/stop")
def stop_run(run: PageRun) -> Json:
    owner = lock.holder(run.lock_file)
    if owner is None:
        raise UserError(
            "nothing trains in this folder", code="not-running", field="run", value=run.path.name, remedy="resume it"
        )
    if not lock.ask_holder(run.lock_file):
        raise UserError(
            f"{owner} trains it, which this page cannot reach",
            code="run-elsewhere",
            field="run",
            value=run.path.name,
            remedy="press Ctrl-C where it was started, or cancel its job there: it saves and ends",
        )
    return {"asked": owner.process.pid}


@routes.post("/runs/{key}/resume")
def resume_run(context: PageContext, key: str, run: PageRun) -> Json:
    require_trust(run.recipe_file)
    arguments = ("train", str(run.recipe_file), "--output", str(run.path))
    return add_job(context, "train", context.workspace.label(run.path), arguments, key)


async def _news(context: Context, key: str, request: Request) -> AsyncIterator[str]:
    """Yield what has changed in a run, as long as it is there: its last step and state; comments keep the connection."""
    former, quiet = "", 0.0
    while not (context.ends.is_set() or await request.is_disconnected()):
        try:
            now = json.dumps(await run_in_threadpool(runs.pulse, context, key))
        except UserError:
            return  # the browser asks again, and is told
        if now != former:
            former, quiet = now, 0.0
            yield f"data: {now}\n\n"
        elif quiet > _PING_SECONDS:
            quiet = 0.0
            yield ": still here\n\n"
        await asyncio.sleep(_FOLLOW_SECONDS)
        quiet += _FOLLOW_SECONDS


def _compared(context: Context, keys: list[str]) -> Json:
    """Return results, differing recipe keys, curves, and previews by prompt of two to eight runs."""
    if not 2 <= len(set(keys)) <= _MOST_COMPARED:
        raise UserError(
            f"this compares two to {_MOST_COMPARED} runs",
            code="runs-to-compare",
            field="runs",
            value=len(set(keys)),
            remedy="choose them in the list of runs",
        )
    folders = [context.workspace.run(key) for key in keys]
    found = compare.compare(folders)
    named = list(zip(found.names, found.data, strict=True))
    return {
        "names": found.names,
        "results": results.as_json(found.result_rows),
        "recipe": results.as_json(found.recipe_rows),
        "figures": results.as_json(plots.overlaid(named)),
        "previews": _previews([runs.previews(context, key, run) for key, run in zip(keys, folders, strict=True)]),
    }


def _previews(of_runs: list[list[Json]]) -> list[Json]:
    """Return the previews of each prompt: of the last step that all runs have, or else of each one's last."""
    steps = [{shown["step"]: shown for shown in found} for found in of_runs]
    common = set(steps[0]).intersection(*steps[1:])
    chosen = [found.get(max(common, default=max(found, default=None))) for found in steps]
    by_prompt: dict[str, list[Json | None]] = {}
    for number, shown in enumerate(chosen):
        for file in shown["files"] if shown else ():
            row = by_prompt.setdefault(file["prompt"], [None] * len(chosen))
            row[number] = file | {"step": shown["step"]} if shown and file["url"] else None
    return [{"prompt": prompt, "files": files} for prompt, files in by_prompt.items()]
