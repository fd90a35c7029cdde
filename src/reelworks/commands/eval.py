"""`reelworks eval`: measure a model on held-out clips, or clips that were generated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reelworks.commands import show
from reelworks.commands.options import Html, Json
from reelworks.core.errors import UserError
from reelworks.inference.evaluate.request import EvalRequest

if TYPE_CHECKING:
    from reelworks.inference.evaluate.checkpoint_series import CheckpointSeries
    from reelworks.inference.evaluate.held_out import Evaluation
    from reelworks.inference.evaluate.report import Report


def evaluate(request: EvalRequest, html: Html = None, json: Json = False) -> None:
    """Measure the loss of a model on held-out clips, its checkpoints, or clips that it generated.

    With a run, a checkpoint or a recipe: prints the loss by bucket and timestep. The clips are those that training holds
    out for validation, at ten timesteps as Open-Sora 1.2 evaluates, with noise that is the same for every model. The same
    command prints the same numbers again. A run's catalog is read as it is; --data-path and recipes scan their data first.
    The result is written to evaluations/ in the run folder.

    With --checkpoints: measures several checkpoints of a run alike. Each generates clips from the same prompts with the same
    noise, which are compared with the training clips, and is measured on the held-out clips. What is measured is added to
    the metrics of the checkpoint as eval/NAME, for keep_best, unless others keep such values of other settings, and is not
    measured again by the same command. The page of --html shows the clips, a line for each checkpoint, with the numbers
    beside. By default the metrics are those of samples.metrics, or else likeness and closeness.

    With --generated: prints one value for each metric. psnr and ssim compare clips with references of the same name; motion
    and flicker need none; clip-score needs prompts, in .txt files beside the clips; fid-*, kid-* and fvd-videomae compare
    the two folders as sets. A metric that cannot be measured is listed with the reason.
    """
    from reelworks.inference.evaluate import evaluate
    from reelworks.inference.evaluate.checkpoint_series import CheckpointSeries
    from reelworks.inference.evaluate.report import Report

    if html is not None and request.checkpoints is None:
        raise UserError(
            "the page shows checkpoints side by side",
            code="key-without-effect",
            field="--html",
            value=str(html),
            remedy="leave it out, or choose checkpoints of a run with --checkpoints",
        )
    with show.scan_progress(quiet=json) as on_scan, show.clip_progress(quiet=json) as on_clip:
        result, files, recorded = evaluate.evaluate(request, on_scan, on_clip)
    if html is not None and isinstance(result, CheckpointSeries):
        from reelworks.reports import checkpoint_grid

        checkpoint_grid.write(result, html)
        files.append(html)
    if json:
        show.json(result)
        return
    if isinstance(result, CheckpointSeries):
        _print_series(result)
    elif isinstance(result, Report):
        _print_clips(result)
    else:
        _print_model(result)
    for text in [*map(str, files), *([recorded] if recorded else [])]:
        show.line(text)


def _print_model(result: Evaluation) -> None:
    times = list(result.validation.loss_by_time)
    rows = (
        (name, losses.clips, f"{losses.loss:.3g}", *(f"{losses.loss_by_time[time]:.3g}" for time in times))
        for name, losses in [*result.validation.by_bucket.items(), ("all", result.validation)]
    )
    show.line("Loss by bucket and timestep:")
    show.table(("bucket", "clips", "loss", *(f"{float(time):.0f}" for time in times)), rows)
    show.line(result.headline())


def _print_series(series: CheckpointSeries) -> None:
    higher = series.higher_is_better
    rows = []
    for one in series.checkpoints:
        marks = {name: "*" if series.best[name] == one.step else " " for name in series.names}
        cells = [f"{one.values[name]:.4g}{marks[name]}" if name in one.values else "– " for name in series.names]
        rows.append((one.step, *cells))
    show.table(("step", *(f"{name} {'↑' if higher[name] else '↓'}" for name in series.names)), rows)
    show.line("* the best by that metric; ↑ higher is better, ↓ lower is better")
    for text in series.to_text():
        show.line(text)


def _print_clips(report: Report) -> None:
    rows = (
        (measured.name, f"{measured.value:.4g}", "higher" if measured.higher_is_better else "lower", measured.clips)
        for measured in report.metrics
        if measured.value is not None
    )
    show.table(("metric", "value", "better", "clips"), rows)
    for measured in report.metrics:
        if measured.skipped is not None:
            what = "skipped" if measured.value is None else "left out"
            show.line(f"{measured.name}: {what}: {measured.skipped}")
    for file in report.unreadable:
        show.line(f"{file.name} cannot be read: {file.reason}")
