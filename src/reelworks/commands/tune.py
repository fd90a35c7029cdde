"""`reelworks tune`: measure the largest batch sizes of a recipe's buckets, and their times."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from reelworks.commands import show
from reelworks.commands.options import Json
from reelworks.core import units
from reelworks.training.memory.tune_request import TuneRequest

if TYPE_CHECKING:
    from reelworks.data.schedule.cost_fit import CostModel
    from reelworks.training.memory.search import Trial
    from reelworks.training.memory.tune import Tuned
    from reelworks.training.plan.refit import Refit


def tune(request: TuneRequest, json: Json = False) -> None:
    """Measure the largest batch size of each resolution and length, of all stages.

    Trains the network on made-up clips, forward, backward and optimizer step, in a process of its own, so that running
    out of memory ends nothing. Then fits the time of a micro-batch to what was measured, and prints how far the fit is
    off, also for shapes that it was not shown.

    Writes a file. Name it in the recipe as buckets.tuned, for entries with batch_size = "auto", and as cost.measured,
    by which plans even out the ranks.

    Encoding of clips and captions is not part of it: with stored latents there is none.

    With --from-run it trains nothing: it fits the time of a micro-batch again to the steps of a run that trained one
    bucket each, and writes RECIPE with .costs.json, for cost.measured.
    """
    if request.from_run is not None:
        from reelworks.training.plan import refit

        with show.scan_progress(quiet=json) as on_scan:
            fitted = refit.refit(request, on_scan)
        show.json(fitted) if json else _print_refit(fitted, request.path)
        return
    with show.loading():
        from reelworks.training.memory import tune as tuning
    with show.scan_progress(quiet=json) as on_scan:
        result = tuning.tune(request, on_scan, (lambda trial: None) if json else _print_trial)
    show.json(result) if json else _print(result, request.path)


def _print_refit(result: Refit, path: Path) -> None:
    rows = (
        (each.bucket, each.batch_size, each.steps, f"{each.milliseconds:,.1f}", f"{each.residual:+.0%}")
        for each in result.measured
    )
    show.table(("bucket", "clips", "steps", "ms", "fit"), rows)
    _print_model(result.model_ms, result.held_out_errors)
    show.line(f'written to {path}; in the recipe: cost.measured = "{path}"')


def _print_trial(trial: Trial | str) -> None:
    if not isinstance(trial, str):
        clips, gb = units.plural(trial.batch_size, "clip"), trial.peak_bytes / 1e9
        trial = f"{trial.bucket}, {clips}: {trial.milliseconds:,.1f} ms, {gb:.2f} GB"
    show.line(trial)


def _print(result: Tuned, path: Path) -> None:
    from reelworks.training.memory.recomputation import lines_of_entries

    rows = []
    for entry, size in result.batch_sizes.items():
        resolution, frames = entry.rsplit(" ", 1)
        own = [t for t in result.trials if t.batch_size == size and t.bucket.startswith(f"{resolution} ")]
        trial = next((t for t in own if t.bucket.endswith(f" {frames}")), None)
        cells = ("–", "–") if trial is None else (f"{trial.milliseconds:,.1f}", f"{trial.peak_bytes / 1e9:.2f}")
        rows.append((entry, size or "does not fit", *cells))
    show.table(("entry", "batch size", "ms", "GB"), rows)
    for line in lines_of_entries(result.recomputation):
        show.line(line)
    _print_model(result.model_ms, result.held_out_errors)
    show.line(f'written to {path}; in the recipe: buckets.tuned and cost.measured = "{path}"')


def _print_model(model: CostModel, held_out: dict[int, float]) -> None:
    show.line(
        f"time of a micro-batch of b clips of n tokens: {model.per_batch:.3g} + b · ({model.per_clip:.3g} + "
        f"{model.per_token:.3g} n + {model.per_token_squared:.3g} n²) ms"
    )
    if held_out:
        worst = max(held_out.values(), key=abs)
        show.line(f"predicted from the other token counts, a time is off by {worst:+.0%} at most")
