"""Facts of runs as JSON, the same as in their reports."""

from __future__ import annotations

import math
import socket
import threading
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cachetools import TTLCache, cached

from reelworks.annexes.page import file_status, understood
from reelworks.annexes.page.context import Context, PageContext, PageRun
from reelworks.annexes.page.event_index import SPARK_STEPS, SPEED_STEPS, EventIndex
from reelworks.annexes.page.file_status import FileStatus
from reelworks.annexes.page.jobs import PageJob
from reelworks.annexes.page.workspace import key_of, text_of
from reelworks.core import results, user_files
from reelworks.core.errors import UserError
from reelworks.data.checkpoint.retention import folder_bytes
from reelworks.data.run import lock
from reelworks.data.run.folder import RunFolder
from reelworks.reports import run_data, run_facts, status
from reelworks.reports.previews import MEDIA
from reelworks.reports.run_data import Event, RunData
from reelworks.training.coverage import clip_history
from reelworks.training.plan import plan_report

Json = dict[str, Any]
_SIZE_SECONDS = 30  # a run's size is measured so often at most
_STOPPED = {"signal": "asked to stop", "storage": "its storage gave no clip"}  # by the reason of an end that goes on


def line(context: Context, key: str, path: Path, jobs: Mapping[str, PageJob]) -> Json:
    """Return a run's line in the list of runs; one whose files cannot be understood says so."""
    try:
        with understood.reading(path):
            return row(context, key, path, jobs)
    except UserError as error:
        about = {"key": key, "name": text_of(Path(path.name)), "path": context.workspace.label(path), "model": ""}
        unknown = dict.fromkeys(("total_steps", "loss", "seconds_left", "bytes", "reading"))
        return (
            about | unknown | {"step": 0, "spark": [], "changed": 0.0} | _state_row("unreadable", "bad", error.problem)
        )


def row(context: Context, key: str, path: Path, jobs: Mapping[str, PageJob]) -> Json:
    """Return what the list of runs shows of one, with the jobs of `jobs_of_runs`."""
    run = RunFolder(path)
    about: Json = {"key": key, "name": text_of(Path(path.name)), "path": context.workspace.label(path)}
    index = context.index(run, whole=False)
    spark = [event.get("loss") for event in index.steps(SPARK_STEPS)]
    last = index.last_step()
    total = total_steps(run)
    state = _state(context, jobs.get(key), run, index)
    step = last["step"] if last else 0
    changed = max((event["time"] for event in (*index.others[-1:], *([last] if last else []))), default=0.0)
    return (
        about
        | state
        | {
            "step": step,
            "total_steps": total,
            "loss": last.get("loss") if last else None,
            "spark": spark,
            "seconds_left": _seconds_left(index, last, total) if state["state"] == "running" else None,
            "bytes": _size(path),
            "changed": changed,
            "model": _toml(run.recipe_file).get("model", {}).get("name", ""),
            "reading": None if index.complete else index.read_bytes / index.total_bytes,
        }
    )


def pulse(context: Context, key: str) -> Json:
    """Return what changes while a run trains; raises `UserError` once it is gone."""
    run = context.workspace.run(key)
    index = context.index(run)
    last = index.last_step()
    shown = {k: last.get(k) for k in ("step", "loss", "time", "learning_rate", "seconds")} if last else None
    reading = None if index.complete else round(index.read_bytes / index.total_bytes, 2)
    job = jobs_of_runs(context).get(key)
    return {"last": shown, "others": len(index.others), "reading": reading} | _state(context, job, run, index)


def data(context: Context, run: RunFolder) -> RunData:
    """Return the contents of a run's folder, with so many steps as a plot shows, and without coverage."""
    index = context.index(run)
    events = [*index.valid_others(), *index.steps()]  # in order within each kind
    repeated = index.num_steps - len(index.valid_steps())
    return run_data.of_events(run, index.sessions(), events, [], index.speed(), repeated)


def overview(context: PageContext, key: str, run: PageRun) -> Json:
    """Return everything but curves, coverage and previews."""
    found = data(context, run)
    facts = {
        "events_bytes": context.index(run).total_bytes,
        "others": len(context.index(run).others),
        "headline": run_facts.headline(found),
        "accounting": run_facts.accounting(found.summary),
        "balance": run_facts.balance(found.summary),
        "buckets": run_facts.buckets(found.summary),
        "reasons": [*run_facts.reasons(found.summary), *run_facts.failures(found)],
        "history": status.history(found),
        "warnings": plan_report.warnings(found.summary) if found.summary else [],
        "spikes": run_facts.spikes(found),
        "ranks": run_facts.balance_of_ranks(found),
        "recipe": found.recipe,
        "environment": found.environment,
    }
    return row(context, key, run.path, jobs_of_runs(context)) | dict(results.as_json(facts))


def coverage(run: PageRun) -> list[Json]:
    """Return the numbers of clips by epoch, from the run's records, newest epoch first."""
    return _coverage(str(run.path), file_status.status(run.events_file))


@lru_cache(maxsize=16)
def _coverage(path: str, _: FileStatus) -> list[Json]:
    epochs = clip_history.counts(RunFolder(Path(path))).epochs
    return [results.as_json(run_facts.coverage_row(epoch)) for epoch in reversed(epochs)]


def previews(context: PageContext, key: str, run: PageRun) -> list[Json]:
    """Return the previews of each step, oldest first: the prompt of each and the address of its file."""
    folder = run.samples_folder.resolve()
    by_step = {event["step"]: event for event in context.index(run).valid_others() if event.get("kind") == "samples"}

    def files(event: Event) -> list[Json]:
        names = event.get("files", [])
        prompts = [*event.get("prompts", []), *[""] * len(names)]
        shown = zip(names, prompts, strict=False)
        return [{"prompt": prompt} | _media(f"api/runs/{key}/samples", folder, name) for name, prompt in shown]

    return [{"step": step, "by": event.get("by"), "files": files(event)} for step, event in sorted(by_step.items())]


def measured(key: str, run: PageRun) -> Json | None:
    """Return the newest measurements of several checkpoints, with the addresses of their clips; None without any."""
    found = run_facts.measured(run)
    if found is None:
        return None
    address, folder = f"api/runs/{key}/evaluations", run.evaluations_folder
    rows = [
        results.as_json(row)
        | {"clips": [_media(address, folder, file.relative_to(folder).as_posix()) for file in row.clips]}
        for row in found.rows
    ]
    return dict(results.as_json(found)) | {"rows": rows}


def _media(address: str, folder: Path, name: str) -> Json:
    """Return the address of a generated file below that of its folder, None if it is gone, and whether it is a video."""
    is_video = MEDIA.get(Path(name).suffix.lower(), "").startswith("video/")
    return {"url": f"{address}/{quote(name)}" if (folder / name).is_file() else None, "video": is_video}


def _state(context: Context, job: PageJob | None, run: RunFolder, index: EventIndex) -> Json:
    """Return whether a run trains, waits, has ended or broke off, and why; what its events tell, once all are read."""
    ended = [event for event in index.others if event.get("kind") in ("start", "stop", "error")]
    owner = lock.holder(run.lock_file)
    if owner is not None:
        here = owner.host == socket.gethostname()
        return _state_row("running", "busy", f"trains on {owner.host}" if not here else "", can_stop=here)
    if job is not None and job.state == "waiting":
        return _state_row("waiting", "plain", "waits for the training before it", job=job.id)
    if job is not None and job.state == "running":
        return _state_row("starting", "busy", "loading", job=job.id)
    if not index.complete:
        return _state_row("reading", "busy", "")
    failed = job is not None and job.state == "failed" and (job.ended or 0) >= (ended[-1]["time"] if ended else 0)
    if failed and job is not None:
        return _state_row("crashed", "bad", context.jobs.error(job), job=job.id)
    if not ended:
        return _state_row("not started", "plain", "")
    if ended[-1]["kind"] == "stop":
        if why := _STOPPED.get(str(ended[-1].get("reason"))):
            return _state_row("stopped", "plain", f"{why}; its work is saved")
        return _state_row("finished", "good", "")
    if ended[-1]["kind"] == "error":
        return _state_row("crashed", "bad", str(ended[-1].get("reason", "")))
    return _state_row("crashed", "bad", status.KILLED)


def _state_row(state: str, tone: str, detail: str, *, job: str | None = None, can_stop: bool = False) -> Json:
    return {"state": state, "tone": tone, "detail": detail, "job": job, "can_stop": can_stop}


def jobs_of_runs(context: Context) -> dict[str, PageJob]:
    """Return the last job that trains each run, by the run's key: what it was made for, or what its recipe names."""
    found = {}
    for job in context.jobs.list():
        if job.kind == "train":
            found[job.subject] = job
            if (output := _output(context, job)) is not None:
                found[key_of(output)] = job
    return found


def _output(context: Context, job: PageJob) -> Path | None:
    """Return the run folder of a job that trains a recipe."""
    path = context.workspace.index().recipes.get(job.subject)
    if path is None:
        return None
    output: str = _toml(path).get("output", f"runs/{path.stem}")
    return context.workspace.roots[0] / output


@file_status.kept
def _toml(path: Path) -> Json:
    try:
        return user_files.read_toml(path)
    except (OSError, ValueError):
        return {}


def total_steps(run: RunFolder) -> int | None:
    """Return the step at which a run ends; None if that is not known."""
    recipe = _toml(run.recipe_file)
    train, stages = recipe.get("train", {}), recipe.get("stage", [])
    ends: list[int | None] = [train.get("max_steps")]
    if stages and all("steps" in stage for stage in stages):
        ends.append(sum(stage["steps"] for stage in stages))
    if "max_epochs" in train and (summary := plan_report.read_summary(run)) is not None:
        ends.append(summary.steps_per_epoch * train["max_epochs"])
    return min((end for end in ends if end is not None), default=None)


def _seconds_left(index: EventIndex, last: Event | None, total: int | None) -> float | None:
    seconds = index.seconds_per_step(SPEED_STEPS)
    if total is None or last is None or seconds is None:
        return None
    return float(max(0, total - last["step"]) * seconds)


@cached(TTLCache(math.inf, _SIZE_SECONDS), lock=threading.Lock())
def _size(path: Path) -> int:
    return folder_bytes(path)
