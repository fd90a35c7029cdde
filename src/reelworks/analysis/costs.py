"""Measure the cost of a clip of each bucket from a run's steps, for later plans."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from reelworks.core import files
from reelworks.core.errors import UserError
from reelworks.run import events
from reelworks.run.folder import RunFolder

_WARM_UP_STEPS = 1  # caches, compilers and allocators warm up


def measure_costs(run: RunFolder) -> dict[str, float]:
    """Return the milliseconds that a rank spends on a clip of each bucket: the median over single-bucket steps.

    Raises:
        UserError: There is no run, or it has no step from which a cost can be measured.
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
            "the run has no step from which the cost of a bucket can be measured",
            code="no-measured-cost",
            field="RUN",
            value=str(run.path),
            remedy="train more steps; only steps with a single bucket count, and not the first step after a start",
        )
    return {name: float(np.median(values)) * 1000 for name, values in sorted(seconds.items())}


def write_costs(path: Path, measured_ms: dict[str, float]) -> None:
    """Write the result of `measure_costs` as the file that `cost.measured` of a recipe names.

    Raises:
        UserError: The file cannot be written.
    """
    files.write_for("--costs", path, (files.to_json(measured_ms, indent=2) + "\n").encode())
