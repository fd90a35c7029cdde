"""Read from a run's events which steps hold, by which plan they went, and which clips failed.

The plan says which clips a step was to train, so that "trained" needs no log of every clip: it follows
from the steps that hold and the exceptions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reelworks.run import events, records
from reelworks.run.folder import RunFolder
from reelworks.run.records import Failure, Outcome, RecordError

Event = dict[str, Any]


@dataclass(frozen=True)
class Step:
    """An optimizer step that holds.

    Attributes:
        step: Its number, from 1.
        row: Its row in the segment's plan.
        clips: Clips that counted.
        applied: False where it was skipped: a loss or gradient was not finite, or no clip was decoded.
        recipe: File of the recipe that its start went by, below `recipes/`.
    """

    step: int
    row: int
    clips: int
    applied: bool
    recipe: str


@dataclass
class Epoch:
    """An epoch as far as it went.

    Attributes:
        generation: Times that the data were restarted from scratch.
        epoch: From 0.
        planned: Clips planned, all segments together; None where only the record of the last one tells.
        segment: The one under way, or the last.
        plans: Digest of each segment's plan, by the segment's number.
        steps: Steps that hold, by segment.
        failures: Clips that failed, by step.
        ended: The account that training gave at the epoch's end; None while it runs.
    """

    generation: int
    epoch: int
    planned: int | None = 0
    segment: int = 0
    plans: dict[int, str] = field(default_factory=dict)
    steps: dict[int, list[Step]] = field(default_factory=dict)
    failures: dict[int, list[Event]] = field(default_factory=dict)
    ended: Event | None = None

    def outcome(self, segment: int, rows: int) -> Outcome:
        """Return how the first rows of a segment went, by the events."""
        steps = [s for s in self.steps.get(segment, []) if s.row < rows]
        failures = [
            Failure(row=s.row, uid=e["uid"], copy_index=e["copy"], reason=e["reason"])
            for s in steps
            for e in self.failures.get(s.step, [])
        ]
        return Outcome(rows=rows, skipped=[s.row for s in steps if not s.applied], failures=failures)


def epochs(run: RunFolder) -> list[Epoch]:
    """Epochs that hold, oldest first.

    The files below `coverage/` name the same failures, those of steps that a resume repeated included, so
    the events decide which of them hold.
    """
    told: dict[tuple[int, int], Epoch] = {}
    now: Epoch | None = None
    recipe, goes_back = "", False
    for event in events.timeline(run.events_file, "start", "epoch", "step", "failure", "epoch_end"):
        if event["kind"] == "start":
            recipe, goes_back = event["recipe"], True
        elif event["kind"] == "epoch":
            goes_back = False
            key = (event["generation"], event["epoch"])
            # What was begun beyond it is void: the run went back before anything of that was saved.
            told = {begun: one for begun, one in told.items() if begun <= key}
            now = told.setdefault(key, Epoch(*key))
            if now.plans and event["segment"] != now.segment and event["rows"]:
                now.ended = None  # clips came after the epoch's account, and it goes on with them
            now.planned, now.segment = event["planned"], event["segment"]
            now.plans[now.segment] = event["plan"]
        elif now is None:
            continue
        elif event["kind"] == "step":
            now.steps.setdefault(now.segment, []).append(_step(event, recipe))
        elif event["kind"] == "failure" and event["showing"]:
            continue  # its first showing tells what became of the clip
        elif event["kind"] == "failure":
            now.failures.setdefault(event["step"], []).append(event)
        else:
            now.ended = event
    return [told[key] for key in sorted(told) if not goes_back or _is_left(run, told[key])]


def _is_left(run: RunFolder, epoch: Epoch) -> bool:
    """True unless a start that goes back has removed the epoch, of which no step holds.

    Such a start removes or replaces the records of segments without a step before it tells which one it
    begins, and may have been killed between.
    """
    for number in sorted(epoch.plans.keys() - epoch.steps.keys()):
        try:
            about = records.read(run, (epoch.generation, epoch.epoch, number)).about
        except RecordError:
            del epoch.plans[number]
            epoch.planned = None
            continue
        if about.plan != epoch.plans[number]:
            epoch.plans[number], epoch.planned = about.plan, None
    epoch.segment = max(epoch.plans, default=0)
    return bool(epoch.plans)


def recipe_of(run: RunFolder, step: int) -> Path:
    """File of the recipe that a step was trained by; of the latest start's, if the events do not tell the step."""
    recipe, found = "", ""
    for event in events.timeline(run.events_file, "start", "step"):
        if event["kind"] == "start":
            recipe = event["recipe"]
        elif event["step"] == step:
            found = recipe
    return run.recipes_folder / found if found else run.recipe_file


def finished_generations(run: RunFolder) -> set[int]:
    """Generations of the data whose training came to its end at least once."""
    finished, now = set(), 0
    for event in events.timeline(run.events_file, "epoch", "stop"):
        if event["kind"] == "epoch":
            now = event["generation"]
        elif event["reason"] == "finished":
            finished.add(now)
    return finished


def _step(event: Event, recipe: str) -> Step:
    # What is not finite stands as null; a step with either was not applied.
    applied = event["loss"] is not None and event["grad_norm"] is not None and event["clips"] > 0
    return Step(event["step"], event["row"], event["clips"], applied, recipe)
