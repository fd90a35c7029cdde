"""Timeline of a run: starts, resumes, signals, and checkpoints saved and deleted."""

from __future__ import annotations

from dataclasses import dataclass, field

from reelworks.core import units
from reelworks.report.run_data import Event, RunData

BEST = "the best by"  # first words of the reason that retention gives
KILLED = "no stop event (process killed or machine lost)"


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
    """Return every checkpoint of the run, newest first.

    Replays all events as written, since a resume does not undo a deletion.
    """
    rows: dict[int, CheckpointRow] = {}
    for event in data.told:
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
    measured = [row for row in kept if row.loss is not None]
    return min(measured, key=lambda row: row.loss or 0.0, default=None)


def sessions(data: RunData) -> list[list[Event]]:
    """Split all events into runs of the process, each beginning with its `start`."""
    cut: list[list[Event]] = []
    for event in data.told:
        if event["kind"] == "start" or not cut:
            cut.append([])
        cut[-1].append(event)
    return cut


def training_seconds(data: RunData) -> float:
    """Return the wall-clock time from each start to that session's last event, summed."""
    return float(sum(session[-1]["time"] - session[0]["time"] for session in sessions(data)))


def resumes(data: RunData) -> int:
    """Return how often training resumed from a checkpoint."""
    return len([e for e in data.told if e["kind"] == "start" and e.get("resumed_from") is not None])


def repeated_steps(data: RunData) -> int:
    """Return the number of steps that were lost with their process and repeated."""
    return len([event for event in data.told if event["kind"] == "step"]) - len(data.events_of("step"))


def state(data: RunData) -> tuple[str, str]:
    """Return the state of the run, and its tone: "good", "busy" or "plain"."""
    events = [event for event in data.told if event["kind"] in ("start", "stop")]
    if not events:
        return "not started", "plain"
    if events[-1]["kind"] == "start":
        return "running, or ended without a stop event", "busy"
    reason = events[-1].get("reason", "")
    finished = {"finished": "finished", "max_steps": "reached max_steps", "signal": "stopped by a signal"}
    return finished.get(reason, f"stopped: {reason}"), "plain" if reason == "signal" else "good"


def history(data: RunData) -> list[Moment]:
    """Return starts, resumes, signals, stops and interruptions, oldest first."""
    moments: list[Moment] = []
    cut = sessions(data)
    for i, session in enumerate(cut):
        moments += [moment for event in session if (moment := _moment(event))]
        stopped = any(event["kind"] == "stop" for event in session)
        if not stopped and i + 1 < len(cut):
            last = session[-1]
            moments.append(Moment(last["time"], last.get("step"), "Interrupted", KILLED, "bad"))
    return moments


def _moment(event: Event) -> Moment | None:
    kind, step, time = event["kind"], event.get("step"), event["time"]
    if kind == "start":
        return _start(event)
    if kind == "signal":
        return Moment(time, step, str(event.get("name", "signal")), "asked to save and exit", "warn")
    if kind == "stop":
        return Moment(time, step, "Stopped", str(event.get("reason", "")).replace("_", " "), "good")
    return None


def _start(event: Event) -> Moment:
    resumed_from = event.get("resumed_from")
    keys = (
        ("world_size", "world size"),
        ("micro_batches_per_step", "micro-batches a step"),
        ("same_bucket_run", "slot width"),
        ("device", "device"),
    )
    detail = ", ".join(f"{label} {event[key]}" for key, label in keys if key in event)
    title = "Started" if resumed_from is None else f"Resumed from step {units.count(resumed_from)}"
    return Moment(event["time"], resumed_from or 0, title, detail, "start")
