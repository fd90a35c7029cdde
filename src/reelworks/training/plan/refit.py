"""Fit the cost model again to the step times of a run, in which clips, encoding and other ranks had their part."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from reelworks.core import files, requests
from reelworks.data.catalog.scan.scan import ScanProgress
from reelworks.data.run.folder import RunFolder
from reelworks.data.schedule import cost_fit
from reelworks.data.schedule.cost_fit import BatchTime, CostModel, Timing
from reelworks.training.memory.tune_request import TuneRequest
from reelworks.training.plan import epoch_stats
from reelworks.training.recipe.origin import Origin


@dataclass(frozen=True)
class BucketTiming:
    """Median time of a bucket's micro-batches of one size over the steps that had no other bucket.

    Attributes:
        residual: Relative error of the fitted time; None before the fit.
    """

    bucket: str
    tokens: int
    batch_size: int
    milliseconds: float
    steps: int
    residual: float | None = None


@dataclass(frozen=True)
class Refit:
    """Times of a run, and the model that was fitted to them, as they are in the file.

    Attributes:
        origin: The device and the network of the run.
        costs_ms: Time of a micro-batch by bucket of the recipe, as it was measured where the run has steps of it alone.
        held_out_errors: Relative error at each number of tokens, predicted from the others.
    """

    run: Path
    origin: Origin
    costs_ms: dict[str, BatchTime]
    measured: list[BucketTiming]
    model_ms: CostModel
    held_out_errors: dict[int, float]


@requests.telling(TuneRequest)
def refit(request: TuneRequest, on_scan: Callable[[ScanProgress], None] | None = None) -> Refit:
    """Fit the times of a run to the buckets of a recipe, and write the file that `cost.measured` names.

    Raises:
        UserError: The run has no step of one of these buckets alone, the first step after each start left out.
    """
    assert request.from_run is not None
    run, (_, table) = RunFolder(request.from_run), request.load(on_scan)
    tokens = {bucket.name: bucket.tokens for bucket in table.buckets}
    measured = [
        BucketTiming(bucket, tokens[bucket], size, statistics.median(ms), len(ms))
        for (bucket, size), ms in sorted(epoch_stats.milliseconds(run, "--from-run", tokens).items())
    ]
    timings = [Timing(each.tokens, each.batch_size, each.milliseconds) for each in measured]
    model = cost_fit.fit(timings)
    costs = {bucket.name: model.of_clips(bucket.tokens) for bucket in table.buckets}
    for each in sorted(measured, key=lambda m: m.steps):
        costs[each.bucket] = costs[each.bucket].through(each.batch_size, each.milliseconds)
    measured = [replace(m, residual=r) for m, r in zip(measured, model.residuals(timings), strict=True)]
    result = Refit(run.path, Origin.of_run(run), costs, measured, model, cost_fit.held_out_errors(timings))
    files.write_for("--out", request.path, (files.to_json(result) + "\n").encode())
    return result
