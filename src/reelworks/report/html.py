"""The report of a run as one self-contained HTML file."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any, NamedTuple

from reelworks.core import files
from reelworks.report import page, plots, run_data, run_facts, status
from reelworks.report.run_data import Event, RunData
from reelworks.run.folder import RunFolder

MAX_PREVIEW_STEPS = 16
MAX_PREVIEW_BYTES = 64_000_000  # in total, before base64; browsers still open such a page quickly

_MEDIA = {
    ".mp4": "video/mp4",
    ".webm": "video/webm",
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".webp": "image/webp",
    ".gif": "image/gif",
}


class Preview(NamedTuple):
    """A generated clip or picture as a data URI, which is empty if the file is missing."""

    prompt: str
    uri: str
    is_video: bool


class PreviewStep(NamedTuple):
    """Previews of one step."""

    step: int
    previews: list[Preview]


def write(run: RunFolder) -> Path:
    """Write the report of a run, finished or not, and return its path."""
    data = run_data.load(run)
    checkpoints = status.checkpoints(data)
    text = page.render(
        "template.html",
        data=data,
        name=data.path.resolve().name,
        state=status.state(data),
        headline=run_facts.headline(data),
        figures=plots.all_of(data),
        previews=_previews(data, run.samples_folder),
        preview_steps=len(data.events_of("samples")),
        accounting=run_facts.accounting(data.summary),
        buckets=run_facts.buckets(data.summary),
        balance=run_facts.balance(data.summary),
        reasons=[*run_facts.reasons(data.summary), *filter(None, [run_facts.failures(data)])],
        coverage=run_facts.coverage(data),
        kept=[row for row in checkpoints if row.kept],
        deleted=[row for row in checkpoints if not row.kept],
        history=status.history(data),
        environment=_flat(data.environment),
    )
    files.write_bytes(run.report_file, text.encode())
    return run.report_file


def _previews(data: RunData, folder: Path) -> list[PreviewStep]:
    """Return previews by step, newest first: the newest, the first and as many between as fit the page."""
    events = _spread({event["step"]: event for event in data.events_of("samples")})
    steps: list[PreviewStep] = []
    left_bytes = MAX_PREVIEW_BYTES
    for event in events:
        paths = [_inside(folder, name) for name in event.get("files", [])]
        left_bytes -= sum(path.stat().st_size for path in paths if path)
        if steps and left_bytes < 0:
            break
        prompts = [*event.get("prompts", []), *[""] * len(paths)]
        steps.append(PreviewStep(event["step"], list(map(_embed, paths, prompts))))
    return steps


def _spread(events: dict[int, Event]) -> list[Event]:
    """Pick evenly spaced steps, newest first, the first and last included."""
    steps = sorted(events, reverse=True)
    n = min(len(steps), MAX_PREVIEW_STEPS)
    picked = [steps[round(i * (len(steps) - 1) / max(1, n - 1))] for i in range(n)]
    return [events[step] for step in picked]


def _inside(folder: Path, name: str) -> Path | None:
    """Resolve a file below the previews; None if it is missing, of an unknown kind or outside the folder."""
    path = (folder / name).resolve()
    known = path.suffix.lower() in _MEDIA and path.is_relative_to(folder.resolve())
    return path if known and path.is_file() else None


def _embed(path: Path | None, prompt: str) -> Preview:
    if path is None:
        return Preview(prompt, "", False)
    media = _MEDIA[path.suffix.lower()]
    content = base64.b64encode(path.read_bytes()).decode()
    return Preview(prompt, f"data:{media};base64,{content}", media.startswith("video/"))


def _flat(value: dict[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, item in value.items():
        if isinstance(item, dict):
            flat |= _flat(item, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = ", ".join(map(str, item)) if isinstance(item, list) else str(item)
    return flat
