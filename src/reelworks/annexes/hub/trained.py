"""Sum up a training up to a step: what each of its parts was trained with, and on what.

A part is what one recipe trained on one catalog: a start that goes on with both as they were continues it.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass, replace

from reelworks.annexes.hub import neutral
from reelworks.data.checkpoint import listing
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.run import events, history
from reelworks.data.run.folder import RunFolder
from reelworks.data.run.history import RunPart
from reelworks.training.coverage import speed
from reelworks.training.plan import plan_report
from reelworks.training.plan.plan_report import PlanSummary
from reelworks.training.recipe import recipe_file
from reelworks.training.recipe.recipe import Recipe


@dataclass(frozen=True)
class TrainedPart:
    """A part of a training.

    Attributes:
        first, last: Its steps, from 1.
        recipe: Without names of places and people.
        data: Plan of its latest start; None if it was removed.
        clips: Clips that were shown, repeats included.
        file: Name of its published recipe.
    """

    first: int
    last: int
    recipe: Recipe
    data: PlanSummary | None
    clips: int
    file: str = "recipe.toml"

    @property
    def sizes(self) -> str:
        """Resolutions and frame counts of its bucket entries."""
        shown = [f"{entry.resolution} ×{frames}" for entry in self.recipe.bucket for frames in entry.frames()]
        return ", ".join(dict.fromkeys(shown)) or "a table of Open-Sora"

    def continues(self, former: TrainedPart) -> bool:
        """Whether it goes on with the recipe and the catalog of a former one."""
        counts = [None if part.data is None else part.data.catalog for part in (self, former)]
        return self.recipe == former.recipe and counts[0] == counts[1]


@dataclass(frozen=True)
class Trained:
    """A training up to a step, of which no resume discarded anything.

    Attributes:
        epoch: From 0; None if it is not known.
        seconds: Time of all steps, by number and name of the devices.
        metrics: Those of the checkpoint.
        parts: At least one, oldest first.
        on_hub: Hub ids with commits of weights that were downloaded, by recipe key.
    """

    step: int
    epoch: int | None
    seconds: Mapping[str, float]
    metrics: dict[str, float]
    parts: list[TrainedPart]
    on_hub: Mapping[str, str]

    @property
    def clips(self) -> int:
        """Clips that were shown."""
        return sum(part.clips for part in self.parts)


def read(run: RunFolder, step: int) -> Trained:
    """Sum up a run up to a step."""
    # Without events, all that is known is the recipe, and the plan of the latest start.
    of_run = history.parts(run, step) or [RunPart(0, step, {}, run.recipe_file, run.summary_file())]
    begins, speeds = [part.begun for part in of_run], [speed.total([])] * len(of_run)
    for event in events.stream(run.events_file, "step"):
        if event["step"] <= step:
            index = bisect.bisect_left(begins, event["step"]) - 1
            speeds[index] = speed.total([speeds[index], speed.of_step(event)])
    on_hub, seconds = dict[str, str](), dict[str, float]()
    parts = list[TrainedPart]()
    for part, shown in zip(of_run, speeds, strict=True):
        on_hub |= part.start.get("sources", {})
        machine = f"{part.start.get('world_size', 1)} × {part.start.get('device', 'unknown')}"
        seconds[machine] = seconds.get(machine, 0.0) + shown.seconds
        recipe, data = recipe_file.load(part.recipe), plan_report.read_summary_file(part.summary)
        own = TrainedPart(part.begun + 1, int(part.last), neutral.recipe(recipe, on_hub), data, shown.clips)
        if parts and own.continues(parts[-1]):
            own = replace(own, first=parts[-1].first, clips=parts[-1].clips + own.clips)
            parts.pop()
        parts.append(own)
    former = [replace(part, file=f"recipe-{number}.toml") for number, part in enumerate(parts[:-1], 1)]
    saved = CheckpointFolder(run.checkpoints_folder).info(step)
    return Trained(step, listing.epoch(saved), seconds, listing.finite(saved.metrics), [*former, *parts[-1:]], on_hub)
