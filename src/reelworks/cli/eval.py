"""`reelworks eval`: measure a model on held-out clips."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from reelworks.cli import show
from reelworks.cli.options import Json, Overrides

if TYPE_CHECKING:
    from reelworks.evaluation.held_out import Evaluation


def evaluate(
    source: Annotated[
        Path,
        Argument(
            metavar="RUN|CHECKPOINT|RECIPE",
            help="A run folder, one checkpoint, or a recipe, for the weights that it begins with.",
        ),
    ],
    step: Annotated[int | None, Option(min=0, help="Checkpoint of the run; default: the newest good one.")] = None,
    best: Annotated[bool, Option("--best", help="Use the best checkpoint by the recipe's keep_best.")] = False,
    raw_weights: Annotated[
        bool, Option("--raw-weights", help="Use the trained weights instead of their average.")
    ] = False,
    timesteps: Annotated[
        int,
        Option(
            min=0,
            max=1000,
            metavar="N",
            help="Measure at N timesteps in equal distances; 0 for those of validation.timesteps.",
        ),
    ] = 10,
    max_clips: Annotated[
        int | None, Option(min=1, metavar="N", help="Most clips to measure on; default: validation.max_clips.")
    ] = None,
    batch_size: Annotated[
        int | None,
        Option(min=1, metavar="N", help="Timesteps of a clip that run as one batch; default: all of them."),
    ] = None,
    data_path: Annotated[
        Path | None, Option(help="Measure on all clips of this folder or list in place of held-out ones.")
    ] = None,
    out: Annotated[
        Path | None, Option("--out", "-o", metavar="FILE", help="Also write the result to this JSON file.")
    ] = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Measure the loss of a model on held-out clips, by bucket and timestep.

    The clips are those that training holds out for validation, at ten timesteps as Open-Sora 1.2 evaluates, with noise
    that is the same for every model. The same command prints the same numbers again. A run's catalog is read as it is;
    --data-path and recipes scan their data first.

    The result is written to evaluations/ in the run folder.
    """
    from reelworks.evaluation import held_out
    from reelworks.evaluation.held_out import Source

    found = Source.locate(
        source, step=step, best=best, averaged=not raw_weights, overrides=overrides or [], data_path=data_path
    )
    times = held_out.spread(found.recipe, timesteps) if timesteps else None
    found = found.measuring(timesteps=times, max_clips=max_clips)
    with show.scan_progress(quiet=json) as on_scan:
        result = held_out.evaluate(found, times_at_once=batch_size, on_scan=on_scan)
    written = held_out.write(result, out)
    if json:
        show.json(result.to_json())
        return
    _print(result)
    for path in written:
        show.line(str(path))


def _print(result: Evaluation) -> None:
    times = list(result.validation.loss_by_time)
    table = show.new_table("bucket", "clips", "loss", *(f"{float(time):.0f}" for time in times))
    rows: dict[str, Any] = {**result.validation.by_bucket, "all": result.validation}
    for name, losses in rows.items():
        cells = [f"{losses.loss_by_time[time]:.3g}" for time in times]
        table.add_row(name, str(losses.clips), f"{losses.loss:.3g}", *cells)
    show.line("Loss by bucket and timestep:")
    show.print_table(table, whole=True)
    show.line(result.headline())
