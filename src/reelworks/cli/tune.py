"""`reelworks tune`: measure the largest batch sizes of a recipe's buckets, and their times."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from reelworks.cli import show
from reelworks.cli.options import DataPath, Json, Overrides, RecipeArgument, load_recipe
from reelworks.core import log, units
from reelworks.core.errors import UserError

if TYPE_CHECKING:
    from reelworks.buckets.table import BucketTable
    from reelworks.recipe.recipe import Recipe
    from reelworks.schedule.cost_fit import CostModel
    from reelworks.train.tuning.search import Trial
    from reelworks.train.tuning.tune import Tuned


def tune(
    recipe: RecipeArgument,
    out: Annotated[
        Path | None, Option("--out", "-o", metavar="FILE", help="File to write; default: RECIPE with .tuned.json.")
    ] = None,
    memory: Annotated[
        float | None,
        Option(min=0.1, metavar="GB", help="Memory to use; default: 92 % of the GPU, or half of what a CPU has free."),
    ] = None,
    step_seconds: Annotated[
        float | None,
        Option(min=0.001, metavar="S", help="Longest time of a micro-batch of several clips, with its optimizer step."),
    ] = None,
    max_batch: Annotated[int, Option(min=1, metavar="N", help="Most clips of a micro-batch.")] = 512,
    estimate: Annotated[
        bool, Option("--estimate", help="Compute instead of measuring, for a GPU of --memory.")
    ] = False,
    from_run: Annotated[
        Path | None,
        Option("--from-run", metavar="RUN", help="Measure no batch sizes: take the times from the steps of a run."),
    ] = None,
    data_path: DataPath = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Measure the largest batch size of each resolution and length.

    Trains the network on made-up clips, forward, backward and optimizer step, in a process of its own, so that running
    out of memory ends nothing. Then fits the time of a micro-batch to what was measured, and prints how far the fit is
    off, also for shapes that it was not shown.

    Writes a file. Name it in the recipe as buckets.tuned, for entries with batch_size = "auto", and as cost.measured,
    by which plans even out the ranks.

    Encoding of clips and captions is not part of it: with stored latents there is none.

    With --from-run it trains nothing: it fits the time of a micro-batch again to the steps of a run that trained one
    bucket each, and writes RECIPE with .costs.json, for cost.measured.
    """
    from reelworks.cli.check import with_buckets

    loaded, table = with_buckets(_unmeasured(load_recipe(recipe, overrides, data_path)), quiet=json)
    if from_run is not None:
        _refit(from_run, table, out or recipe.with_suffix(".costs.json"), json=json)
        return
    if estimate and memory is None:
        raise UserError(
            "an estimate needs the memory of the GPU",
            code="memory-not-given",
            field="--memory",
            remedy="give it in GB, as in --memory 24",
        )
    with show.loading():
        from reelworks.train.tuning import tune as tuning
        from reelworks.train.tuning import workbench
        from reelworks.train.tuning.search import Limits
    limit = workbench.device_bytes() if memory is None else int(memory * 1e9)
    limits = Limits(limit, None if step_seconds is None else 1000 * step_seconds, max_batch)
    if estimate:
        with log.stage("estimating the largest batch sizes", at_once=True):
            result = tuning.estimated(loaded, table, limits)
    else:
        with log.stage("measuring the largest batch sizes", at_once=True):
            result = tuning.tune(loaded, table, limits, (lambda trial: None) if json else _print_trial)
    path = out or recipe.with_suffix(".tuned.json")
    tuning.write(path, result)
    show.json(result.to_json()) if json else _print(result, path)


def _refit(run: Path, table: BucketTable, path: Path, *, json: bool) -> None:
    from reelworks.run.folder import RunFolder
    from reelworks.train.tuning import refit

    result = refit.refit(RunFolder(run), table)
    refit.write(path, result)
    if json:
        show.json(result.to_json())
        return
    rows = show.new_table("bucket", "clips", "steps", "ms", "fit")
    for each, residual in zip(
        result.measured, result.model.residuals([m.timing for m in result.measured]), strict=True
    ):
        rows.add_row(
            each.bucket, str(each.batch_size), str(each.steps), f"{each.milliseconds:,.1f}", f"{residual:+.0%}"
        )
    show.print_table(rows)
    _print_model(result.model, result.held_out)
    show.line(f'written to {path}; in the recipe: cost.measured = "{path}"')


def _unmeasured(recipe: Recipe) -> Recipe:
    """Return a recipe that does not need the file, which is not written yet."""
    from reelworks.buckets import tuned

    entries, settings = tuned.unmeasured(recipe.bucket, recipe.buckets)
    cost = recipe.cost.model_copy(update={"measured": None})
    return recipe.model_copy(update={"bucket": entries, "buckets": settings, "cost": cost})


def _print_trial(trial: Trial | str) -> None:
    show.line(trial if isinstance(trial, str) else _text(trial))


def _text(trial: Trial) -> str:
    return f"{trial.bucket}, {units.plural(trial.batch_size, 'clip')}: {trial.milliseconds:,.1f} ms, {trial.peak_bytes / 1e9:.2f} GB"


def _print(result: Tuned, path: Path) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("entry", "batch size", "ms", "GB"):
        table.add_column(heading, justify="left" if heading == "entry" else "right")
    for entry, size in result.batch_sizes.items():
        resolution, frames = entry.rsplit(" ", 1)
        own = [t for t in result.trials if t.batch_size == size and t.bucket.startswith(f"{resolution} ")]
        trial = next((t for t in own if t.bucket.endswith(f" {frames}")), None)
        cells = ("–", "–") if trial is None else (f"{trial.milliseconds:,.1f}", f"{trial.peak_bytes / 1e9:.2f}")
        table.add_row(entry, str(size) if size else "does not fit", *cells)
    show.print_table(table)
    _print_model(result.model, result.held_out)
    show.line(f'written to {path}; in the recipe: buckets.tuned and cost.measured = "{path}"')


def _print_model(model: CostModel, held_out: dict[int, float]) -> None:
    show.line(
        f"time of a micro-batch of b clips of n tokens: {model.per_batch:.3g} + b · ({model.per_clip:.3g} + "
        f"{model.per_token:.3g} n + {model.per_token_squared:.3g} n²) ms"
    )
    if held_out:
        worst = max(held_out.values(), key=abs)
        show.line(f"predicted from the other token counts, a time is off by {worst:+.0%} at most")
