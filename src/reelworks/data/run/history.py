"""Read from a run's events which steps are valid, which plan they followed, and which clips failed.

The plan lists the clips of each step, so no log of every clip is needed: the trained clips follow from the plan, the
valid steps and the failures. A step is valid unless a later start resumed from before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from reelworks.data.run import events, records
from reelworks.data.run.events import Event
from reelworks.data.run.folder import RunFolder
from reelworks.data.run.records import Outcome, RecordedFailure, RecordError


@dataclass(frozen=True, slots=True)
class RunStep:
    """A valid optimizer step.

    Attributes:
        step: Number of the step, from 1.
        plan_step: Index of the step in the plan of its segment.
        clips: Clips that counted in the loss.
        applied: False if the step was skipped: a loss or gradient was not finite or a spike, or no clip was decoded.
        recipe: File of the recipe that its start used, below `recipes/`.
    """

    step: int
    plan_step: int
    clips: int
    applied: bool
    recipe: str
    world_size: int


@dataclass
class Epoch:
    """The part of an epoch that was trained so far.

    Attributes:
        planned: Clips planned by all segments together; None if only the record of the last segment has it.
        segment: The current segment, or the last one.
        plans: Digest of each segment's plan, by the segment's number.
        ends: The event with the clip counts at the end of each segment's plan, for the plans that were trained to it.
        steps: Valid steps, by segment.
        failures: Events of failed clips and repeats, by step.
        stage: Name of the recipe's stage; empty without stages.
    """

    data_restarts: int
    epoch: int
    planned: int | None = 0
    segment: int = 0
    plans: dict[int, str] = field(default_factory=dict)
    ends: dict[int, Event] = field(default_factory=dict)
    steps: dict[int, list[RunStep]] = field(default_factory=dict)
    failures: dict[int, list[Event]] = field(default_factory=dict)
    stage: str = ""

    @property
    def ended(self) -> Event | None:
        """The event with the clip counts at the epoch's end; None while the current segment has steps left."""
        return self.ends.get(self.segment)

    def begin(self, segment: int, plan: str) -> None:
        """Make a segment the current one.

        A start may begin the same number with another plan, or go back to an earlier segment. The end of a plan is
        the epoch's end only as long as that plan is followed, so what later segments and another plan had is void.
        """
        for number in [n for n in self.plans if n > segment]:
            self.void(number)
        if self.plans.get(segment) != plan:
            self.void(segment)
        self.segment, self.plans[segment] = segment, plan

    def void(self, segment: int) -> None:
        """Forget the plan of a segment, and its end."""
        self.plans.pop(segment, None)
        self.ends.pop(segment, None)

    def first_failures(self, step: int) -> list[Event]:
        """Return the failures of a step that count: those of first uses."""
        return [event for event in self.failures.get(step, []) if not event["repeat_index"]]

    def outcome(self, segment: int, num_steps: int) -> Outcome:
        """Return the outcome of the first steps of a segment, by the events."""
        steps = [s for s in self.steps.get(segment, []) if s.plan_step < num_steps]
        failures = [
            RecordedFailure(plan_step=s.plan_step, uid=e["uid"], copy_index=e["copy"], reason=e["reason"])
            for s in steps
            for e in self.first_failures(s.step)
        ]
        return Outcome(steps=num_steps, skipped=[s.plan_step for s in steps if not s.applied], failures=failures)


def epochs(run: RunFolder, only: tuple[int, int] | None = None) -> list[Epoch]:
    """Return the valid epochs, oldest first, or one by its data restarts and number: of others no step is read.

    The files below `coverage/` list the same failures, but also those of steps that a resume repeated, so the events
    decide which failures are valid.
    """
    valid: dict[tuple[int, int], Epoch] = {}
    now: Epoch | None = None
    recipe, stage, world_size, goes_back = "", "", 1, False
    doubtful: set[tuple[int, int]] = set()  # by a start that may have gone back, and was killed before it told where to
    kinds = ("start", "epoch", "step", "failure", "epoch_end")
    for event in events.stream(run.events_file, *kinds, of_epoch=only):
        if event["kind"] == "start":
            world_size = event["world_size"] // event.get("sequence_degree", 1)
            if goes_back:
                doubtful |= valid.keys()
            recipe, goes_back = event["recipe"], True
            stage = event.get("stage", {}).get("name", "")
        elif event["kind"] == "epoch":
            goes_back = False
            key = (event["data_restarts"], event["epoch"])
            # Later epochs are void: the run went back before it saved anything of them.
            valid = {begun: epoch for begun, epoch in valid.items() if begun <= key}
            doubtful.discard(key)
            now = valid.setdefault(key, Epoch(*key))
            now.begin(event["segment"], event["plan"])
            now.stage = stage
            now.planned = event["planned"]
        elif now is None:
            continue
        elif event["kind"] == "step":
            done = event["clips"], event.get("applied", True)
            step = RunStep(event["step"], event["plan_step"], *done, recipe, world_size)
            now.steps.setdefault(now.segment, []).append(step)
        elif event["kind"] == "failure" and not event.get("held_out"):
            now.failures.setdefault(event["step"], []).append(event)
        elif event["kind"] == "epoch_end":
            now.ends[now.segment] = event
    if goes_back:
        doubtful |= valid.keys()
    asked = [key for key in sorted(valid) if only in (key, None)]
    return [valid[key] for key in asked if key not in doubtful or _is_left(run, valid[key])]


def _is_left(run: RunFolder, epoch: Epoch) -> bool:
    """Return whether the epoch remains after a start that goes back; updates its plans from the records.

    Such a start removes or replaces the records of segments without a valid step before it writes the event of the
    segment that it begins, and may have been killed in between.
    """
    for number in sorted(epoch.plans.keys() - epoch.steps.keys(), reverse=True):
        try:
            about = records.read(run, (epoch.data_restarts, epoch.epoch, number)).about
        except RecordError:
            epoch.void(number)
            epoch.planned = None
            continue
        if about.plan != epoch.plans[number]:
            epoch.begin(number, about.plan)
            epoch.planned = None
    epoch.segment = max(epoch.plans, default=0)
    return bool(epoch.plans)


def epoch_name(epoch: int, data_restarts: int, stage: str | None) -> str:
    """Return the name of an epoch; after a restart of the data they count from 0 again."""
    if stage:
        return f"{epoch} of stage {stage}"
    return f"{epoch}" + (f" of data restart {data_restarts}" if data_restarts else "")


class RunPart(NamedTuple):
    """Valid steps in a row that one start trained.

    Attributes:
        begun: The step before the first one.
        last: The last one; infinite for the latest start.
        start: The event of the start, with its recipe, device and world size.
        summary: File that sums up the plan which it began with; whoever needs room may have removed it.
    """

    begun: int
    last: float
    start: Event
    recipe: Path
    summary: Path


def parts(run: RunFolder, last: float = math.inf) -> list[RunPart]:
    """Return the parts of a run up to a step, oldest first; a part ends where a later start went on."""
    starts = list(events.read(run.events_file, "start"))
    found = []
    for start, valid in zip(starts, events.last_steps(starts)[1:], strict=True):
        begun, end = start.get("resumed_from") or 0, min(valid, last)
        if begun < end:
            found.append(RunPart(begun, end, start, run.recipes_folder / start["recipe"], run.summary_file(begun)))
    return found


def part_of(run: RunFolder, step: int) -> RunPart | None:
    """Return the part of a run in which a step was trained; the latest one if the events lack the step."""
    return _holding(parts(run), step)


def _holding(among: list[RunPart], step: int) -> RunPart | None:
    return next((part for part in among if part.begun < step <= part.last), among[-1] if among else None)


def recipe_of(run: RunFolder, step: int) -> Path:
    """Return the file of the recipe that a step was trained with; of the latest start if the events lack the step."""
    return recipes_of(run, [step])[step]


def recipes_of(run: RunFolder, steps: Iterable[int]) -> dict[int, Path]:
    """Return the same for several steps, by step."""
    among = parts(run)
    return {step: part.recipe if (part := _holding(among, step)) else run.recipe_file for step in steps}


def finished_generations(run: RunFolder) -> set[int]:
    """Return the generations of the data whose training finished at least once."""
    finished, now = set(), 0
    for event in events.timeline(run.events_file, "epoch", "stop"):
        if event["kind"] == "epoch":
            now = event["data_restarts"]
        elif event["reason"] == "finished":
            finished.add(now)
    return finished
