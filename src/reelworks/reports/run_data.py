"""Contents of a run folder, read once; parts that do not exist yet are empty."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reelworks.core import toml, user_files
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder, RunInfo
from reelworks.training.coverage import clip_history, speed
from reelworks.training.coverage.coverage import EpochCoverage
from reelworks.training.coverage.speed import Speed
from reelworks.training.plan import plan_report
from reelworks.training.plan.plan_report import PlanSummary

Event = events.Event
LAST_STEPS = 50  # over which losses and norms are averaged
# Steps that are kept for plots, up to twice as many, beside the last ones and those with marks or block norms.
_MOST_STEPS = 20_000


@dataclass(frozen=True)
class RunData:
    """Contents of a run folder."""

    path: Path
    info: RunInfo
    summary: PlanSummary | None  # of `plan/summary.json`; None if it is missing or damaged
    recipe: str  # the resolved recipe as text
    environment: dict[str, Any]  # content of `environment.json`
    # all events as written, also those that a resume discarded; of steps in a row only the last
    all_events: list[Event]
    # events that no resume discarded, see `data.run.events.timeline`; of very many steps, evenly spaced ones,
    # those with marks, and the last
    events: list[Event]
    # on_disk, pinned: steps of the committed and of the pinned checkpoints
    on_disk: frozenset[int]
    pinned: frozenset[int]
    coverage: list[EpochCoverage]  # counts of clips in each epoch from the run's records, oldest first
    speed: Speed  # of all steps that no resume discarded
    repeated_steps: int  # steps that were lost with their process and trained again

    def events_of(self, kind: str) -> list[Event]:
        """Return the events of one kind that no resume discarded, oldest first."""
        return [event for event in self.events if event["kind"] == kind]

    @property
    def recipe_values(self) -> dict[str, Any]:
        """The recipe's values; empty if it cannot be read."""
        try:
            return toml.parse(self.recipe)
        except ValueError:
            return {}

    @property
    def last_step(self) -> int:
        """Number of optimizer steps done, according to the events."""
        return max((event.get("step") or 0 for event in self.events), default=0)


def load(run: RunFolder) -> RunData:
    """Read everything that a report shows; the folder must hold a run."""
    every: list[Event] = []
    written = 0
    for event in events.read(run.events_file):
        if event["kind"] == "step":
            written += 1
            if every and every[-1]["kind"] == "step":
                every.pop()
        every.append(event)
    apart, left, total = max(1, written // _MOST_STEPS), 0, Speed(0, 0.0, 0.0)
    valid, recent, spikes = list[Event | None](), deque[int](), set[int]()
    for event in events.stream(run.events_file):
        if event["kind"] == "spike":
            spikes.add(event["step"])
        elif event["kind"] == "step":
            left, total = left + 1, speed.total([total, speed.of_step(event)])
            recent.append(len(valid))
        valid.append(event)
        if len(recent) > LAST_STEPS:
            at, number = recent.popleft(), left - LAST_STEPS
            step = valid[at]
            assert step is not None
            is_marked = step["step"] in spikes or not step.get("applied", True) or "grad_norm_by_block" in step
            if number % apart and not is_marked:
                valid[at] = None
    shown = [event for event in valid if event is not None]
    return of_events(run, every, shown, clip_history.counts(run).epochs, total, written - left)


def of_events(
    run: RunFolder,
    every: list[Event],
    valid: list[Event],
    coverage: list[EpochCoverage],
    speed: Speed,
    repeated_steps: int,
) -> RunData:
    """Read all but the events, which are given: all of them, and those that no resume discarded."""
    store = CheckpointFolder(run.checkpoints_folder)
    steps = store.steps()
    try:
        environment = user_files.parse_json(_read_text(run.environment_file))
    except ValueError:
        environment = {}
    return RunData(
        path=run.path,
        info=run.info(),
        summary=plan_report.read_summary(run),
        recipe=_read_text(run.recipe_file),
        environment=environment if isinstance(environment, dict) else {},
        all_events=every,
        events=valid,
        on_disk=frozenset(steps),
        pinned=frozenset(step for step in steps if store.is_pinned(step)),
        coverage=coverage,
        speed=speed,
        repeated_steps=repeated_steps,
    )


def _read_text(path: Path) -> str:
    try:
        return user_files.read_text(path, user_files.TABLE, errors="replace")
    except OSError:
        return ""
