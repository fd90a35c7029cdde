"""Compare runs: differences of their recipes, results in numbers, curves in one plot, previews side by side."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from reelworks.core import files, units
from reelworks.data.run.events import Event
from reelworks.data.run.folder import RunFolder
from reelworks.reports import page, plots, previews, run_data, status
from reelworks.reports.previews import MAX_PREVIEW_BYTES, Preview
from reelworks.reports.run_data import RunData
from reelworks.training.recipe import diff


@dataclass(frozen=True)
class Row:
    """A measure of all runs, or a key of all recipes."""

    label: str
    values: list[str]


@dataclass(frozen=True)
class PreviewRow:
    """Previews of one prompt, one for each run; None if a run has none."""

    prompt: str
    previews: list[Preview | None]


@dataclass(frozen=True)
class RunResults:
    """Results of a run.

    Attributes:
        name: Name of its folder, or its path if two folders have the same name.
        steps: Optimizer steps done.
        loss: Mean over the last 50 steps, as `grad_norm`.
        validation_loss: The last one.
        best_validation_loss: The lowest one of those measured on the same clips and settings as the last, at `best_validation_step`.
        measured_on: Digest of the clips and settings of these losses, by which other runs may be compared; None if it is not known.
        spikes: Steps far above the usual.
        seconds_per_step: Their median.
        waited_share: Share of the steps' time in which training waited for clips, from 0 to 1.
        training_seconds: Time from each start to its end, validations and saves included.
    """

    name: str
    path: Path
    state: str
    steps: int
    clips_trained: int
    loss: float | None
    validation_loss: float | None
    best_validation_loss: float | None
    best_validation_step: int | None
    measured_on: str | None
    grad_norm: float | None
    spikes: int
    seconds_per_step: float | None
    clips_per_second: float | None
    waited_share: float | None
    training_seconds: float

    def to_text(self) -> dict[str, str]:
        """Return all of it as people read it, by label."""
        best_loss, best_step = units.loss(self.best_validation_loss), self.best_validation_step
        seconds, rate, waited = self.seconds_per_step, self.clips_per_second, self.waited_share
        return {
            "steps": units.count(self.steps),
            "clips trained": units.count(self.clips_trained),
            f"training loss, last {run_data.LAST_STEPS} steps": units.loss(self.loss),
            "validation loss, last": units.loss(self.validation_loss),
            "validation loss, best": "–" if best_step is None else f"{best_loss} at step {units.count(best_step)}",
            "validation, measured on": self.measured_on or "–",
            f"gradient norm, last {run_data.LAST_STEPS} steps": units.loss(self.grad_norm),
            "spikes": units.count(self.spikes),
            "seconds a step": "–" if seconds is None else units.number(seconds),
            "clips a second": "–" if rate is None else units.number(rate),
            "waiting for clips": "–" if waited is None else units.percent(waited),
            "training time": units.duration(self.training_seconds),
            "state": self.state,
        }


@dataclass(frozen=True)
class ComparedKey:
    """A recipe key with different values, one for each run; "not set" for a run without it.

    Of a key that changed during a run, all its values are told, such as "0.001 to step 500, 0.0001".
    """

    key: str
    values: list[Any]


@dataclass(frozen=True)
class Comparison:
    """Differences between runs.

    Attributes:
        runs: Results of each.
        recipe: Recipe keys with different values.
        data: Contents of the run folders.
    """

    JSON_KEYS: ClassVar = ("runs", "recipe")

    runs: list[RunResults]
    recipe: list[ComparedKey]
    data: list[RunData]

    @property
    def names(self) -> list[str]:
        """Name of each run."""
        return [run.name for run in self.runs]

    @property
    def result_rows(self) -> list[Row]:
        """Rows of the table of results."""
        columns = [run.to_text() for run in self.runs]
        return [Row(label, [column[label] for column in columns]) for label in columns[0]]

    @property
    def recipe_rows(self) -> list[Row]:
        """Rows of the table of recipe keys."""
        rows = []
        for one in self.recipe:
            is_rate = one.key.endswith("learning_rate")
            texts = [units.learning_rate(v) if is_rate and isinstance(v, float) else str(v) for v in one.values]
            rows.append(Row(one.key, texts))
        return rows


def compare(folders: Sequence[RunFolder]) -> Comparison:
    """Read run folders, and compare all of them with the first."""
    runs = [run_data.load(folder) for folder in folders]
    names = [run.path.resolve().name for run in runs]
    if len(set(names)) < len(names):
        names = [str(run.path) for run in runs]
    results = [_results(run, name) for run, name in zip(runs, names, strict=True)]
    return Comparison(results, _recipe_keys(runs), runs)


def _results(run: RunData, name: str) -> RunResults:
    steps, validations = run.events_of("step"), run.events_of("validation")
    measured = [event for event in validations if event.get("loss") is not None and event.get("is_comparable", True)]
    series = measured[-1].get("measured_on") if measured else None
    measured = [event for event in measured if event.get("measured_on") == series]
    best = min(measured, key=lambda event: event["loss"], default=None)
    return RunResults(
        name=name,
        path=run.path,
        state=status.state(run)[0],
        steps=run.last_step,
        clips_trained=run.speed.clips,
        loss=_mean(steps, "loss"),
        validation_loss=measured[-1]["loss"] if measured else None,
        best_validation_loss=None if best is None else best["loss"],
        best_validation_step=None if best is None else best["step"],
        measured_on=series,
        grad_norm=_mean(steps, "grad_norm"),
        spikes=len(run.events_of("spike")),
        seconds_per_step=statistics.median(e["seconds"] for e in steps) if steps else None,
        clips_per_second=run.speed.clips_per_second,
        waited_share=run.speed.waited_share,
        training_seconds=status.training_seconds(run),
    )


def _mean(steps: list[Event], key: str) -> float | None:
    values = [event[key] for event in steps if event.get(key) is not None][-run_data.LAST_STEPS :]
    return statistics.fmean(values) if values else None


def _recipe_keys(runs: Sequence[RunData]) -> list[ComparedKey]:
    """Return the recipe keys whose values differ between any two runs, with the value of each run."""
    recipes = [_recipe_of(run) for run in runs]
    changed = [diff.changes(recipes[0], other) for other in recipes[1:]]
    first = {change.key: change.before for changes in changed for change in changes}
    keys = []
    for key in sorted(first):
        others = [next((c.after for c in changes if c.key == key), first[key]) for changes in changed]
        keys.append(ComparedKey(key, [first[key], *others]))
    return keys


def _recipe_of(run: RunData) -> dict[str, Any]:
    """Return the values of a run's recipe by dotted key, as they trained its steps; those of stages as they were written last."""
    values, trained = diff.flat(run.recipe_values), diff.by_steps(RunFolder(run.path), run.last_step)
    stages = {key: value for key, value in values.items() if key.startswith("stage.")}
    return {key: diff.as_told(each) for key, each in trained.items()} | stages if trained else values


def write(comparison: Comparison, file: Path) -> None:
    """Write a comparison as one HTML file."""
    named = list(zip(comparison.names, comparison.data, strict=True))
    step, rows = _previews(comparison.data)
    text = page.render(
        "compare.html",
        figures=plots.overlaid(named),
        name=" and ".join(comparison.names),
        comparison=comparison,
        colours=[f"c{i % plots.COLOURS + 1}" for i in range(len(named))],
        preview_step=step,
        previews=rows,
    )
    files.write_for("--html", file, text.encode())


def _previews(runs: Sequence[RunData]) -> tuple[list[int | None], list[PreviewRow]]:
    """Return the step and the previews of each run, by prompt: of the last step that all have, else of each one's last."""
    by_step = [{event["step"]: event for event in run.events_of("samples")} for run in runs]
    common = set(by_step[0]).intersection(*by_step[1:])
    steps = [max(common, default=max(events, default=None)) for events in by_step]
    shown: list[dict[str, Preview]] = []
    left_bytes = MAX_PREVIEW_BYTES
    for run, events, step in zip(runs, by_step, steps, strict=True):
        made = [] if step is None else previews.of_event(run, events[step]).previews
        left_bytes -= sum(len(preview.uri) for preview in made)
        shown.append({preview.prompt: preview for preview in made} if left_bytes > 0 else {})
    prompts = list(dict.fromkeys(prompt for of_run in shown for prompt in of_run))
    return steps, [PreviewRow(prompt, [of_run.get(prompt) for of_run in shown]) for prompt in prompts]
