"""Timeline of a run: starts, resumes, signals, and checkpoints saved and deleted."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from reelworks.core import units
from reelworks.data.run import lock
from reelworks.data.run.events import Event
from reelworks.data.run.folder import RunFolder
from reelworks.reports.run_data import RunData

BEST = "the best by"  # first words of the reason that retention gives
KILLED = "killed, or its machine was lost: no stop is told"
_SETTINGS = {
    "world_size": "world size",
    "micro_batches_per_step": "micro-batches a step",
    "same_bucket_run": "slot width",
    "device": "device",
}


@dataclass
class CheckpointRow:
    """State of a checkpoint after the last event about it."""

    step: int
    num_bytes: float | None = None
    seconds: float | None = None
    loss: float | None = None
    kept: bool = True
    reasons: list[str] = field(default_factory=list)
    on_disk: bool = False


@dataclass(frozen=True)
class Moment:
    """An entry of the timeline."""

    time: float
    step: int | None
    title: str
    detail: str
    tone: str


def checkpoints(data: RunData) -> list[CheckpointRow]:
    """Return every checkpoint of the run, newest first, from all events, since a resume does not undo a deletion."""
    rows: dict[int, CheckpointRow] = {}
    for event in data.all_events:
        if event["kind"] == "checkpoint":
            rows[event["step"]] = CheckpointRow(event["step"], event.get("bytes"), event.get("seconds"))
        elif event["kind"] == "retention":
            for kept, key in ((True, "kept"), (False, "deleted")):
                for entry in event.get(key, []):
                    row = rows.setdefault(entry["step"], CheckpointRow(entry["step"]))
                    row.kept, row.reasons = kept, list(entry.get("reasons", []))
    losses = {event.get("step"): event.get("loss") for event in data.events_of("validation")}
    for step in data.on_disk:
        rows.setdefault(step, CheckpointRow(step))
    for row in rows.values():
        row.loss, row.on_disk = losses.get(row.step), row.step in data.on_disk
        if row.step in data.pinned and "pinned" not in row.reasons:
            row.reasons.append("pinned")
    return sorted(rows.values(), key=lambda row: -row.step)


def best_checkpoint(data: RunData) -> CheckpointRow | None:
    """Return the checkpoint that retention calls the best, or else the one with the lowest validation loss."""
    kept = [row for row in checkpoints(data) if row.kept]
    named = [row for row in kept if any(reason.startswith(BEST) for reason in row.reasons)]
    if named:
        return named[0]
    return min([row for row in kept if row.loss is not None], key=lambda row: row.loss or 0.0, default=None)


def _sessions(data: RunData) -> list[list[Event]]:
    """Split all events into runs of the process, each beginning with its `start`."""
    cut: list[list[Event]] = []
    for event in data.all_events:
        if event["kind"] == "start" or not cut:
            cut.append([])
        cut[-1].append(event)
    return cut


def training_seconds(data: RunData) -> float:
    """Return the wall-clock time from each start to that session's last event, summed, but for a clock that was set back."""
    return float(sum(max(b["time"] - a["time"], 0.0) for each in _sessions(data) for a, b in pairwise(each)))


def resumes(data: RunData) -> int:
    """Return how often training resumed from a checkpoint, other than to begin a stage with it."""
    starts = (event for event in data.all_events if event["kind"] == "start")
    return sum(event.get("resumed_from") is not None and not _begins_stage(event) for event in starts)


def _begins_stage(start: Event) -> bool:
    return "stage" in start and start["stage"]["step"] == start["resumed_from"]


def state(data: RunData) -> tuple[str, str]:
    """Return the state of the run, and its tone: "good", "busy" or "plain"."""
    events = [event for event in data.all_events if event["kind"] in ("start", "stop", "error")]
    if not events:
        return "not started", "plain"
    if events[-1]["kind"] == "start":
        is_held = lock.holder(RunFolder(data.path).lock_file) is not None
        return ("running", "busy") if is_held else (KILLED, "plain")
    reason = events[-1].get("reason", "")
    if events[-1]["kind"] == "error":
        return "ended with an error", "plain"
    finished = {"finished": "finished", "max_steps": "reached max_steps", "signal": "stopped by a signal"}
    finished["stage"] = "finished a stage"
    return finished.get(reason, f"stopped: {reason}"), "plain" if reason == "signal" else "good"


def history(data: RunData) -> list[Moment]:
    """Return starts, resumes, signals, stops and interruptions, oldest first."""
    moments: list[Moment] = []
    cut = _sessions(data)
    for session in cut:
        moments += filter(None, map(_moment, session))
        last = session[-1]
        if session is not cut[-1] and all(event["kind"] not in ("stop", "error") for event in session):
            moments.append(Moment(last["time"], last.get("step"), "Interrupted", KILLED, "bad"))
    return moments


def _moment(event: Event) -> Moment | None:
    kind, step, time = event["kind"], event.get("step"), event["time"]
    if kind == "start":
        resumed_from = event.get("resumed_from")
        detail = ", ".join(f"{label} {event[key]}" for key, label in _SETTINGS.items() if key in event)
        title = "Started" if resumed_from is None else f"Resumed from step {units.count(resumed_from)}"
        if (stage := event.get("stage")) is not None:
            title += f", stage {stage['name']}"
            title = f"Stage {stage['name']} began" if _begins_stage(event) else title
        return Moment(time, resumed_from or 0, title, detail, "start")
    if kind == "signal":
        return Moment(time, step, str(event.get("name", "signal")), "asked to save and exit", "warn")
    if kind == "early_stop":
        detail = f"no lower validation loss in {units.plural(event['patience'], 'validation')}"
        return Moment(time, step, "Ended early", f"{detail}; best {units.loss(event['best'])}", "warn")
    if kind == "stop_advice":
        return Moment(time, step, "Advice", f"use step {event['use']}: {'; '.join(event['reasons'])}", "warn")
    if kind == "idle_layers":
        return Moment(time, step, "Layers learn nothing", event["message"], "plain" if event["is_note"] else "warn")
    if kind == "error":
        return Moment(time, step, "Failed", str(event.get("reason", "")), "bad")
    if kind == "stop":
        return Moment(time, step, "Stopped", str(event.get("reason", "")).replace("_", " "), "good")
    return None
