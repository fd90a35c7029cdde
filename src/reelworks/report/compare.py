"""Compare runs: differences of their recipes, results in numbers, curves in one plot, previews side by side."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reelworks.core import files, toml, units
from reelworks.recipe import diff
from reelworks.report import page, plots, previews, run_data, status
from reelworks.report.previews import MAX_PREVIEW_BYTES, Preview
from reelworks.report.run_data import Event, RunData
from reelworks.run.folder import RunFolder

_LAST_STEPS = 50  # over which losses and norms are averaged


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
class Comparison:
    """Differences between runs.

    Attributes:
        names: Name of each run: that of its folder, or its path if two folders have the same name.
        results: Measures of all runs.
        recipe: Recipe keys with different values.
        runs: Contents of the run folders.
    """

    names: list[str]
    results: list[Row]
    recipe: list[Row]
    runs: list[RunData]

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        rows = {"results": self.results, "recipe": self.recipe}
        named = {
            key: {row.label: dict(zip(self.names, row.values, strict=True)) for row in found}
            for key, found in rows.items()
        }
        return {"runs": [str(run.path) for run in self.runs], **named}


def compare(folders: Sequence[RunFolder]) -> Comparison:
    """Read run folders, and compare all of them with the first."""
    runs = [run_data.load(folder) for folder in folders]
    names = [run.path.resolve().name for run in runs]
    if len(set(names)) < len(names):
        names = [str(run.path) for run in runs]
    columns = [_results(run) for run in runs]
    results = [Row(label, [column[label] for column in columns]) for label in columns[0]]
    return Comparison(names, results, _recipe_rows(runs), runs)


def _results(run: RunData) -> dict[str, str]:
    steps, validations = run.events_of("step"), run.events_of("validation")
    measured = [event for event in validations if event.get("loss") is not None]
    best = min(measured, key=lambda event: event["loss"], default=None)
    best_loss = "–" if best is None else f"{units.loss(best['loss'])} at step {units.count(best['step'])}"
    return {
        "steps": units.count(run.last_step),
        "clips trained": units.count(run.speed.clips),
        f"training loss, last {_LAST_STEPS} steps": units.loss(_mean(steps, "loss")),
        "validation loss, last": units.loss(measured[-1]["loss"] if measured else None),
        "validation loss, best": best_loss,
        f"gradient norm, last {_LAST_STEPS} steps": units.loss(_mean(steps, "grad_norm")),
        "spikes": units.count(len(run.events_of("spike"))),
        "seconds a step": f"{statistics.median(e['seconds'] for e in steps):.3g}" if steps else "–",
        "clips a second": "–" if run.speed.clips_per_second is None else f"{run.speed.clips_per_second:.3g}",
        "waiting for clips": "–" if run.speed.waited_share is None else units.percent(run.speed.waited_share),
        "training time": units.duration(status.training_seconds(run)),
        "state": status.state(run)[0],
    }


def _mean(steps: list[Event], key: str) -> float | None:
    values = [event[key] for event in steps if event.get(key) is not None][-_LAST_STEPS:]
    return statistics.fmean(values) if values else None


def _recipe_rows(runs: Sequence[RunData]) -> list[Row]:
    """Return the recipe keys whose values differ between any two runs, with the value of each run."""
    recipes = [_parsed(run.recipe) for run in runs]
    changed = [diff.changes(recipes[0], other) for other in recipes[1:]]
    first = {change.key: change.before for changes in changed for change in changes}
    rows = []
    for key in sorted(first):
        others = [next((c.after for c in changes if c.key == key), first[key]) for changes in changed]
        rows.append(Row(key, [_as_text(key, value) for value in (first[key], *others)]))
    return rows


def _as_text(key: str, value: Any) -> str:
    is_rate = key.endswith("learning_rate") and isinstance(value, float)
    return units.learning_rate(value) if is_rate else str(value)


def _parsed(recipe: str) -> dict[str, Any]:
    try:
        return toml.parse(recipe)
    except ValueError:
        return {}


def write(comparison: Comparison, file: Path) -> None:
    """Write a comparison as one HTML file."""
    named = list(zip(comparison.names, comparison.runs, strict=True))
    step, rows = _previews(comparison.runs)
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
