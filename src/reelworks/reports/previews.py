"""Generated clips of a run, and small first frames of trained ones, as data URIs for pages without other files."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from reelworks.core.shape import Shape
from reelworks.data.catalog.store.rows import CatalogRows
from reelworks.data.media.decode import Request
from reelworks.data.run.events import Event
from reelworks.data.run.folder import RunFolder
from reelworks.reports.run_data import RunData

MAX_PREVIEW_STEPS = 16
MAX_PREVIEW_BYTES = 64_000_000  # in total, before base64; browsers still open such a page quickly

MEDIA = {
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


def of_run(data: RunData) -> list[PreviewStep]:
    """Return previews by step, newest first: the newest, the first and as many between as fit the page."""
    events = _spread({event["step"]: event for event in data.events_of("samples")})
    steps: list[PreviewStep] = []
    left_bytes = MAX_PREVIEW_BYTES
    for event in events:
        left_bytes -= sum(path.stat().st_size for path in _paths(data, event) if path)
        if steps and left_bytes < 0:
            break
        steps.append(of_event(data, event))
    return steps


def of_event(data: RunData, event: Event) -> PreviewStep:
    """Return the previews of one event."""
    paths = _paths(data, event)
    prompts = [*event.get("prompts", []), *[""] * len(paths)]
    return PreviewStep(event["step"], list(map(embed, paths, prompts)))


def _paths(data: RunData, event: Event) -> list[Path | None]:
    return [_inside(RunFolder(data.path).samples_folder, name) for name in event.get("files", [])]


def _inside(folder: Path, name: str) -> Path | None:
    """Resolve a file below the previews; None if it is missing, of an unknown kind or outside the folder."""
    path = (folder / name).resolve()
    known = path.suffix.lower() in MEDIA and path.is_relative_to(folder.resolve())
    return path if known and path.is_file() else None


def embed(path: Path | None, prompt: str) -> Preview:
    """Return a generated clip or picture with its content."""
    if path is None or not path.is_file():
        return Preview(prompt, "", False)
    media = MEDIA[path.suffix.lower()]
    content = base64.b64encode(path.read_bytes()).decode()
    return Preview(prompt, f"data:{media};base64,{content}", media.startswith("video/"))


def _spread(events: dict[int, Event]) -> list[Event]:
    """Pick evenly spaced steps, newest first, the first and last included."""
    steps = sorted(events, reverse=True)
    n = min(len(steps), MAX_PREVIEW_STEPS)
    picked = [steps[round(i * (len(steps) - 1) / max(1, n - 1))] for i in range(n)]
    return [events[step] for step in picked]


def first_frame(rows: CatalogRows, row: int, long_px: int) -> Request:
    """Return the request for the first frame of a clip, made smaller if its long side has more pixels."""
    height, width = int(rows.height[row]), int(rows.width[row])
    scale = min(1.0, long_px / max(height, width, 1))
    return Request(
        rows.file(row),
        is_image=bool(rows.is_image[row]),
        shape=Shape(1, max(round(height * scale), 1), max(round(width * scale), 1)),
        first_frame=int(rows.first_frame[row]),
        num_frames=int(rows.num_frames[row]) if rows.is_range[row] else None,
    )


def picture_uri(frame_HWC: NDArray[np.uint8]) -> str:
    """Return a frame as a data URI."""
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(frame_HWC)).save(file, "WEBP", quality=78)
    return f"data:image/webp;base64,{base64.b64encode(file.getvalue()).decode()}"
