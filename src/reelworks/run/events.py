"""Events of a run, as append-only JSON lines with one schema.

Every event has `v` (schema version), `time` (seconds since 1970), `kind` and, except for the first few,
`step` (optimizer steps done). Kinds and their fields:

    start       world_size, micro_batches_per_step, same_bucket_run, threads, device, recipe (file below recipes/),
                resumed_from (step or null)
    epoch       generation, epoch, segment, planned, rows, plan (digest): an epoch's plan begins
    step        epoch, row, loss, loss_by_bucket {name: loss}, learning_rate, grad_norm, clips, tokens,
                seconds, buckets [name, ...]
    validation  loss, loss_by_time {"100": loss, ...}, clips, seconds
    checkpoint  name, bytes, seconds
    retention   kept [{step, reasons}], deleted [{step, reasons}]
    mirrored    bytes, seconds: the step's checkpoint is in the mirror
    mirror_skipped    newer (step): it was not mirrored, because a newer one waited
    unmirrored  reason: it could not be mirrored; training went on
    mirror_retention  kept, deleted: as in retention
    samples     files [path below samples/], prompts [text, ...], by (what made them), num_inference_steps, guidance_scale
    failure     uid, copy, showing, path, reason: a clip became a filler
    epoch_end   epoch, planned, trained, failed, skipped
    unsaved     reason: a checkpoint could not be written; training went on
    stop        reason: "finished" | "signal"
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reelworks.core import files

SCHEMA_VERSION = 1


class EventLog:
    """Writes events of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, kind: str, **fields: Any) -> None:
        """Append one event."""
        files.append_json_line(self.path, {"v": SCHEMA_VERSION, "time": time.time(), "kind": kind, **fields})


def read(path: Path, *kinds: str) -> Iterator[dict[str, Any]]:
    """Yield the events of the given kinds (all, if none is given), oldest first."""
    for event in files.read_json_lines(path):
        if not kinds or event.get("kind") in kinds:
            yield event


def timeline(path: Path, *kinds: str) -> list[dict[str, Any]]:
    """Events that still hold: a start from step s voids earlier events of later steps.

    A run that was killed at step 130 and resumed from its checkpoint of step 100 repeats 101 to 130;
    the first telling of them is dropped. One that was killed before its first checkpoint begins again
    from nothing. Starts are all kept.
    """
    kept: list[dict[str, Any]] = []
    for event in read(path):
        if event.get("kind") == "start":
            resumed = event.get("resumed_from")
            holds = -1 if resumed is None else resumed
            kept = [e for e in kept if e.get("kind") == "start" or e.get("step", 0) <= holds]
        kept.append(event)
    return [e for e in kept if not kinds or e.get("kind") in kinds]
