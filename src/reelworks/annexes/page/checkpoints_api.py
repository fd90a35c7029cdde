"""Checkpoints of a run: what is kept and why, pins, checks, exports, and what would be deleted."""

from __future__ import annotations

import re
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from fastapi import APIRouter
from fastapi.responses import FileResponse
from pydantic import BaseModel, Field

from reelworks.annexes.page import runs
from reelworks.annexes.page.context import Context, PageContext, PageRun
from reelworks.annexes.page.jobs_api import add_job
from reelworks.annexes.page.workspace import text_of
from reelworks.core import digests, results
from reelworks.core.errors import UserError
from reelworks.core.results import Json
from reelworks.data.checkpoint import disk_space, listing, retention
from reelworks.data.checkpoint.config import CheckpointsConfig
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.run import lock
from reelworks.data.run.folder import RunFolder
from reelworks.inference.generate import defaults
from reelworks.models.adapters.conventions import LoraFormat
from reelworks.reports.previews import MEDIA
from reelworks.training.plan import plan_report
from reelworks.training.recipe import preview_model, recipe_file

_STEP = re.compile(r"step-(\d{9,})")
_GENERATED = "generated"  # folder of a run
_IN_USE = "wait for the run, which deletes after each save"


class ExportOptions(BaseModel):
    """Options of an export."""

    format: LoraFormat | None = None
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    ema: bool = True


class GenerationForm(BaseModel):
    """Options of a generation from a checkpoint, by the names of the command; those that are None have its defaults."""

    prompt: str = Field(min_length=1, max_length=10_000)
    seed: int = Field(default=0, ge=0)
    width: int | None = Field(default=None, ge=1)
    height: int | None = Field(default=None, ge=1)
    num_frames: int | None = Field(default=None, ge=1)
    num_inference_steps: int | None = Field(default=None, ge=1)
    guidance_scale: float | None = Field(default=None, ge=1)
    lora_scale: float | None = Field(default=None, ge=-10, le=10)


routes = APIRouter(prefix="/runs/{key}/checkpoints")


@routes.get("")
def list_checkpoints(run: PageRun) -> Json:
    store, policy = _open(run)
    rows = listing.rows(store, policy)
    free = shutil.disk_usage(store.root if store.root.exists() else run.path).free
    return {
        "rows": results.as_json(rows),
        "total_bytes": listing.total_bytes(rows),
        "free_bytes": free,
        "forecast": _forecast(run, store, policy, free),
    }


@routes.get("/prune")
def forecast_prune(run: PageRun) -> Any:
    return results.as_json(listing.prune(*_open(run), dry_run=True))


@routes.post("/prune")
def prune(run: PageRun) -> Any:
    store, policy = _open(run)
    with lock.hold(run.lock_file, field="run", remedy=_IN_USE) as held:
        return results.as_json(listing.prune(CheckpointFolder(store.root, held.check), policy))


@routes.post("/{step}/pin")
def pin(run: PageRun, step: int) -> Any:
    store, policy = _open(run)
    store.pin(step)
    return results.as_json(listing.row(store, policy, step))


@routes.post("/{step}/unpin")
def unpin(run: PageRun, step: int) -> Any:
    store, policy = _open(run)
    store.unpin(step)
    return results.as_json(listing.row(store, policy, step))


@routes.post("/{step}/verify")
def verify(run: PageRun, step: int) -> Any:
    store, policy = _open(run)
    listing.row(store, policy, step)
    return results.as_json(listing.verified(store, [step], True)[0])


@routes.post("/{step}/export")
def export(context: PageContext, key: str, step: int, options: ExportOptions) -> Json:
    run, store, folder = _place(context, key, step, "exports")
    kind = f"-{options.format}" if options.format else ""
    file = folder / f"{run.path.name}-step-{step:09}{kind}-{options.dtype}.safetensors"
    arguments = ["checkpoints", "export", str(store.path(step)), "--output", str(file), "--dtype", options.dtype]
    arguments += ["--format", options.format] if options.format else []
    arguments += ["--ema" if options.ema else "--weights"]
    return add_job(context, "export", f"step {step} of {context.workspace.label(run.path)}", arguments, key)


@routes.get("/{step}/generate")
def get_generate_defaults(run: PageRun, step: int) -> Json:
    """Return what a generation has if nothing else is asked for, None for what it cannot have."""
    recipe, planned = preview_model.recipe_of(recipe_file.of_run(run, step)), plan_report.read_summary(run, step)
    picture, clip = (asdict(defaults.shape(planned, recipe, picture=one)) for one in (True, False))
    sampled = defaults.sampled(recipe)
    return {
        "picture": picture,
        "clip": clip if clip["num_frames"] > 1 else None,
        "num_inference_steps": sampled.num_inference_steps,
        "guidance_scale": sampled.guidance_scale,
        "lora_scale": 1 if recipe.lora is not None and recipe.lora.kind.multiplied else None,
    }


@routes.post("/{step}/generate")
def generate(context: PageContext, key: str, step: int, options: GenerationForm) -> Json:
    run, store, folder = _place(context, key, step, _GENERATED)
    given = options.model_dump(exclude_none=True)
    summary = plan_report.read_summary(run, step)
    frames = options.num_frames or max(
        (bucket.num_frames for bucket in (summary.buckets if summary else ())), default=1
    )
    name = f"step-{step:09}-seed-{options.seed}-{digests.digest_json(given)[:8]}.{'mp4' if frames > 1 else 'png'}"
    arguments = ["generate", str(store.path(step)), "--output", str(folder / name)]
    arguments += [f"--{field.replace('_', '-')}={value}" for field, value in given.items()]
    return add_job(context, "generate", f"step {step} of {context.workspace.label(run.path)}", arguments, key)


@routes.get("/made")
def list_made(key: str, run: PageRun) -> list[Json]:
    return [
        {
            "name": text_of(name),
            "path": text_of(path),
            "step": int(found[1]) if (found := _STEP.search(path.name)) else None,
            "url": f"api/runs/{key}/checkpoints/made/{quote(name)}",
            "bytes": path.stat().st_size,
            "time": path.stat().st_mtime,
            "media": MEDIA.get(path.suffix.lower(), ""),
        }
        for name, path in _made_files(run).items()
    ]


@routes.get("/made/{name:path}")
def get_made(run: PageRun, name: str) -> FileResponse:
    path = _made_files(run).get(name)
    if path is None:
        remedy = "load the page again"
        raise UserError("there is no such file", code="not-found", field="file", value=name, remedy=remedy)
    if (media := MEDIA.get(path.suffix.lower())) is not None:
        return FileResponse(path, media_type=media)
    return FileResponse(path, media_type="application/octet-stream", filename=path.name)


def _place(context: Context, key: str, step: int, name: str) -> tuple[RunFolder, CheckpointFolder, Path]:
    run = context.workspace.run(key)
    store, _ = _open(run)
    if step not in store.steps():
        raise store.unknown(step)
    return run, store, run.path / name


def _made_files(run: RunFolder) -> dict[str, Path]:
    """Return exported weights and what was generated from checkpoints by name, newest first; links are left out."""
    kinds = {run.exports_folder: {".safetensors"}, run.path / _GENERATED: set(MEDIA)}
    found = [
        path
        for folder, suffixes in kinds.items()
        for path in folder.rglob("*")
        if path.suffix.lower() in suffixes and path.is_file() and path.resolve().is_relative_to(run.path.resolve())
    ]
    found.sort(key=lambda path: -path.stat().st_mtime)
    return {path.relative_to(run.path).as_posix(): path for path in found}


def _open(run: RunFolder) -> tuple[CheckpointFolder, CheckpointsConfig]:
    return CheckpointFolder(run.checkpoints_folder), recipe_file.load(run.recipe_file).checkpoints


def _forecast(run: RunFolder, store: CheckpointFolder, policy: CheckpointsConfig, free: int) -> str:
    """Tell what checkpoints will take until the run's end; nothing if that is not known."""
    existing, last = retention.whole(store), runs.total_steps(run)
    if not existing or last is None or existing[-1].step >= last:
        return ""
    plan, every = plan_report.read_summary(run), recipe_file.load(run.recipe_file).validation.every_steps
    steps = disk_space.saves(policy, existing[-1].step, last, None if plan is None else plan.steps_per_epoch, every)
    return disk_space.forecast(existing[-1].num_bytes, policy, steps, free, existing).to_text()
