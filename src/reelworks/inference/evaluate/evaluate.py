"""Measure what a request names, and keep the result in files and as metrics of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from reelworks.core import files, requests
from reelworks.data.catalog.scan.scan import ScanProgress
from reelworks.inference.evaluate import checkpoint_series, held_out, report
from reelworks.inference.evaluate.checkpoint_series import CheckpointSeries
from reelworks.inference.evaluate.held_out import Evaluation
from reelworks.inference.evaluate.report import Report
from reelworks.inference.evaluate.request import EvalRequest


class Evaluated(NamedTuple):
    """A result, the files that it was written to, and a sentence on the checkpoint whose metrics it was added to."""

    result: Evaluation | Report | CheckpointSeries
    files: list[Path]
    recorded: str | None


@requests.telling(EvalRequest)
def evaluate(
    request: EvalRequest,
    on_scan: Callable[[ScanProgress], None] | None = None,
    on_clip: Callable[[int, int], None] = lambda done, total: None,
) -> Evaluated:
    """Measure a model on held-out clips, checkpoints of a run, or generated clips; write and record as asked for.

    Raises:
        UserError: There is nothing to measure, a metric is unknown, or a file cannot be written.

    Examples:
        >>> from reelworks.inference.evaluate.request import EvalRequest
        >>> EvalRequest(source="runs/demo", timesteps=5).of_clips
        False
    """
    measured: Evaluation | Report | CheckpointSeries
    if request.of_clips:
        measured = report.of_folders(request, on_clip)
    elif request.checkpoints is not None:
        measured = checkpoint_series.measure(request, on_clip)
    else:
        measured = held_out.evaluate(request, on_scan, on_clip)
    written = write(measured, request.out)
    recorded = None
    if request.record is not None:
        assert not isinstance(measured, CheckpointSeries), "whose values are recorded anyway"
        recorded = report.record(request.record, measured.values, measured.measured_on)
    return Evaluated(measured, written, recorded)


def write(result: Evaluation | Report | CheckpointSeries, out: Path | None) -> list[Path]:
    """Write a result into its run folder and to a file, where there are any, and return what was written."""
    targets = [path for path in (result.file(), out) if path is not None]
    for path in targets:
        files.write_for("--out", path, (files.to_json(result, indent=2) + "\n").encode())
    return targets
