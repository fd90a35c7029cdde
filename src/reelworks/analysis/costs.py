"""Measured costs: from a run's steps to a file, and from the file to the plan."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from reelworks.core import files
from reelworks.core.errors import UserError
from reelworks.run import events
from reelworks.run.folder import RunFolder

# A first step warms up caches, compilers and allocators.
_WARM_UP_STEPS = 1


def measure_costs(run: RunFolder) -> dict[str, float]:
    """Milliseconds that a rank spent on one clip of each bucket: the median over steps of that bucket alone.

    Raises:
        UserError: There is no run, or no step that can tell.
    """
    run.info()
    seconds: dict[str, list[float]] = {}
    world = since_start = 0
    for event in events.timeline(run.events_file, "start", "step"):
        if event["kind"] == "start":
            world, since_start = event["world_size"], 0
            continue
        since_start += 1
        shown = event["clips"] + event["repeated"]
        if since_start > _WARM_UP_STEPS and len(event["buckets"]) == 1 and shown:
            seconds.setdefault(event["buckets"][0], []).append(event["seconds"] * world / shown)
    if not seconds:
        raise UserError(
            "no step of the run tells the cost of a bucket",
            code="no-measured-cost",
            field="RUN",
            value=str(run.path),
            remedy="train some more steps; only those of a single bucket count, without each start's first one",
        )
    return {name: float(np.median(values)) * 1000 for name, values in sorted(seconds.items())}


def write_costs(path: Path, measured_ms: dict[str, float]) -> None:
    """Write what `measure` found, as `read` reads it.

    Raises:
        UserError: The file cannot be written.
    """
    files.write_for("--costs", path, (files.to_json(measured_ms, indent=2) + "\n").encode())
