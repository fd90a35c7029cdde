"""Contents of a run folder, read once; parts that do not exist yet are empty."""

from __future__ import annotations

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

Event = dict[str, Any]
_MOST_STEPS = 20_000  # that are kept for plots, up to twice as many


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
    # events that no resume discarded, see `data.run.events.timeline`; of very many steps, evenly spaced ones
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
    valid, last = list[Event](), list[Event]()
    for event in events.stream(run.events_file):
        if event["kind"] == "step":
            left, total, last = left + 1, speed.total([total, speed.of_step(event)]), [event]
            if left % apart:
                continue
            last = []
        valid.append(event)
    return of_events(run, every, valid + last, clip_history.counts(run).epochs, total, written - left)


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
