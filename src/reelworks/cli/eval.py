"""`reelworks eval`: measure a model on held-out clips, or clips that were generated."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from reelworks.cli import show
from reelworks.cli.options import Json, Overrides
from reelworks.core.errors import UserError

if TYPE_CHECKING:
    from reelworks.evaluation.held_out import Evaluation
    from reelworks.evaluation.report import Report


def evaluate(
    source: Annotated[
        Path | None,
        Argument(
            metavar="RUN|CHECKPOINT|RECIPE",
            help="A run folder, one checkpoint, or a recipe, for the weights that it begins with.",
        ),
    ] = None,
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
    generated: Annotated[
        Path | None, Option(metavar="FOLDER", help="Measure clips and pictures of this folder; no model is loaded.")
    ] = None,
    reference: Annotated[
        Path | None,
        Option(metavar="FOLDER", help="Compare them with these; those of the same name are compared pixel by pixel."),
    ] = None,
    metrics: Annotated[
        list[str] | None,
        Option(
            "--metric",
            metavar="NAME",
            help="A metric, or a class of your own, as in my_metrics.py:Sharpness; several times for several. Default: all.",
        ),
    ] = None,
    weights: Annotated[
        list[str] | None,
        Option(
            metavar="NAME=PATH",
            help="Local weights of a network that metrics need: clip, dinov2, videomae (folders), inception (a file).",
        ),
    ] = None,
    min_samples: Annotated[
        int,
        Option(
            min=2, metavar="N", help="Fewest frames, or clips, of each set that FID, KID and FVD are computed from."
        ),
    ] = 100,
    prompts_in_names: Annotated[
        bool,
        Option("--prompts-in-names", help="Prompts are in the names of the clips, PROMPT-0.mp4, as VBench has them."),
    ] = False,
    vbench: Annotated[
        Path | None, Option(metavar="FILE", help="Show the results that VBench wrote, NAME_eval_results.json, too.")
    ] = None,
    record: Annotated[
        Path | None,
        Option(
            metavar="RUN|CHECKPOINT",
            help="Add the values to the metrics of this checkpoint, for keep_best: as eval/NAME, and VBench's as vbench/NAME.",
        ),
    ] = None,
    out: Annotated[
        Path | None, Option("--out", "-o", metavar="FILE", help="Also write the result to this JSON file.")
    ] = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Measure the loss of a model on held-out clips, or measure clips that it generated.

    With a run, a checkpoint or a recipe: prints the loss by bucket and timestep. The clips are those that training holds
    out for validation, at ten timesteps as Open-Sora 1.2 evaluates, with noise that is the same for every model. The same
    command prints the same numbers again. A run's catalog is read as it is; --data-path and recipes scan their data first.
    The result is written to evaluations/ in the run folder.

    With --generated: prints one value for each metric. psnr and ssim compare clips with references of the same name; motion
    and flicker need none; clip-score needs prompts, in .txt files beside the clips; fid-*, kid-* and fvd-videomae compare
    the two folders as sets. A metric that cannot be measured is listed with the reason.
    """
    of_clips = generated is not None or vbench is not None
    _check_options(source, of_clips, {"--reference": reference if generated is None else None})
    if of_clips:
        report = _measure_clips(
            generated,
            reference,
            metrics or [],
            weights or [],
            min_samples,
            vbench,
            prompts_in_names=prompts_in_names,
            quiet=json,
        )
        values, value, written = report.values, report.to_json(), _write(out, report.to_json())
    else:
        assert source is not None
        result = _measure_model(
            source, timesteps, max_clips, batch_size, quiet=json,
            step=step, best=best, averaged=not raw_weights, overrides=overrides or [], data_path=data_path,
        )  # fmt: skip
        from reelworks.evaluation import held_out

        values, value, written = {"loss": result.validation.loss}, result.to_json(), held_out.write(result, out)
    recorded = []
    if record is not None:
        from reelworks.evaluation import report as reporting

        recorded = [reporting.record(record, values)]
    if json:
        show.json(value)
        return
    _print_clips(report) if of_clips else _print_model(result)
    for text in [*map(str, written), *recorded]:
        show.line(text)


def _check_options(source: Path | None, of_clips: bool, without_clips: dict[str, Path | None]) -> None:
    if of_clips == (source is not None):
        raise UserError(
            "a model or clips are measured, not both" if of_clips else "nothing is named to be measured",
            code="what-to-evaluate",
            field="RUN|CHECKPOINT|RECIPE",
            value=None if source is None else str(source),
            remedy="name a run, a checkpoint or a recipe, or clips with --generated",
        )
    for option, value in without_clips.items():
        if value is not None:
            raise UserError(
                "it has no effect without --generated",
                code="key-without-effect",
                field=option,
                value=str(value),
                remedy="leave it out, or name the clips to compare with it by --generated",
            )


def _measure_model(
    source: Path, timesteps: int, max_clips: int | None, batch_size: int | None, *, quiet: bool, **which: Any
) -> Evaluation:
    from reelworks.evaluation import held_out
    from reelworks.evaluation.held_out import EvaluatedModel

    found = EvaluatedModel.locate(source, **which)
    times = held_out.spread(found.recipe, timesteps) if timesteps else None
    found = found.measuring(timesteps=times, max_clips=max_clips)
    with show.scan_progress(quiet=quiet) as on_scan, show.clip_progress(quiet=quiet) as on_clip:
        return held_out.evaluate(found, times_at_once=batch_size, on_scan=on_scan, on_clip=on_clip)


def _measure_clips(
    generated: Path | None,
    reference: Path | None,
    metrics: list[str],
    weights: list[str],
    min_samples: int,
    vbench: Path | None,
    *,
    prompts_in_names: bool,
    quiet: bool,
) -> Report:
    from reelworks.evaluation import report as reporting
    from reelworks.evaluation import vbench as exchange
    from reelworks.evaluation.report import Report

    foreign = [] if vbench is None else exchange.results(vbench)
    if generated is None:
        return Report(None, None, foreign)
    with show.clip_progress(quiet=quiet) as on_clip:
        own = reporting.of_folders(
            generated, reference, metrics, weights, min_samples, prompts_in_names=prompts_in_names, on_clip=on_clip
        )
    return Report(generated, reference, [*own.metrics, *foreign], own.unreadable)


def _write(out: Path | None, value: dict[str, Any]) -> list[Path]:
    from reelworks.core import files

    if out is None:
        return []
    files.write_for("--out", out, (files.to_json(value, indent=2) + "\n").encode())
    return [out]


def _print_model(result: Evaluation) -> None:
    times = list(result.validation.loss_by_time)
    table = show.new_table("bucket", "clips", "loss", *(f"{float(time):.0f}" for time in times))
    rows: dict[str, Any] = {**result.validation.by_bucket, "all": result.validation}
    for name, losses in rows.items():
        cells = [f"{losses.loss_by_time[time]:.3g}" for time in times]
        table.add_row(name, str(losses.clips), f"{losses.loss:.3g}", *cells)
    show.line("Loss by bucket and timestep:")
    show.print_table(table)
    show.line(result.headline())


def _print_clips(report: Report) -> None:
    table = show.new_table("metric", "value", "better", "clips")
    for measured in report.metrics:
        if measured.value is not None:
            better = "higher" if measured.higher_is_better else "lower"
            table.add_row(measured.name, f"{measured.value:.4g}", better, str(measured.clips))
    show.print_table(table)
    for measured in report.metrics:
        if measured.skipped is not None:
            what = "skipped" if measured.value is None else "left out"
            show.line(f"{measured.name}: {what}: {measured.skipped}")
    for file in report.unreadable:
        show.line(f"{file.name} cannot be read: {file.reason}")
