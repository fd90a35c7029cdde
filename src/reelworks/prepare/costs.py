"""Measured costs: from a run's steps to a file, and from the file to the plan."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from reelworks.core import files
from reelworks.core.errors import UserError
from reelworks.run import events
from reelworks.run.folder import RunFolder

# A first step warms up caches, compilers and allocators.
_WARM_UP_STEPS = 1


def measure(run: RunFolder) -> dict[str, float]:
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
            field="RUN",
            value=str(run.path),
            remedy="train some more steps; only those of a single bucket count, without each start's first one",
        )
    return {name: float(np.median(values)) * 1000 for name, values in sorted(seconds.items())}


def write(path: Path, measured_ms: dict[str, float]) -> None:
    """Write what `measure` found, as `read` reads it.

    Raises:
        UserError: The file cannot be written.
    """
    files.write_for("--costs", path, (files.to_json(measured_ms, indent=2) + "\n").encode())


def read(path: str | None, names: Sequence[str]) -> dict[str, float]:
    """Read `cost.measured`; nothing where there is no such file named.

    Args:
        path: Of the file.
        names: Of the recipe's buckets; the file may lack some, and have others.

    Raises:
        UserError: The file cannot be read, holds anything but positive numbers by name, or none for these buckets.
    """
    if path is None:
        return {}
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise _bad(path, f"it cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise _bad(path, f"it is not JSON ({error})") from error
    if not isinstance(values, dict):
        raise _bad(path, "it is not one JSON object")
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise _bad(path, f'"{name}" is {value!r}, not a positive number of milliseconds')
    if values.keys().isdisjoint(names):
        raise _bad(path, f"it names none of the buckets ({', '.join(names[:3])}, ...)")
    return {name: float(value) for name, value in values.items()}


def _bad(path: str, problem: str) -> UserError:
    return UserError(
        problem,
        field="cost.measured",
        value=path,
        remedy="write it anew with `reelworks report RUN --costs FILE`, or remove the key",
    )
