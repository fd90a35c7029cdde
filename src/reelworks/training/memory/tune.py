"""Measure batch sizes and times of a recipe's entries, and write the file that plans use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from reelworks.core import files, gpus, log, machine, requests, units
from reelworks.core.errors import UserError
from reelworks.data.buckets.entry import Recomputation
from reelworks.data.buckets.table import Bucket, BucketTable
from reelworks.data.catalog.scan.scan import ScanProgress
from reelworks.data.schedule import cost_fit
from reelworks.data.schedule.cost_fit import BatchTime, CostModel, Timing
from reelworks.training.memory import estimate, memory, search, workbench
from reelworks.training.memory.search import Limits, Trial
from reelworks.training.memory.tune_request import TuneRequest
from reelworks.training.recipe.origin import ESTIMATE, Origin
from reelworks.training.recipe.recipe import Recipe


@dataclass(frozen=True)
class Tuned:
    """Batch sizes that keep the limits, and the cost model, as they are in the file.

    Attributes:
        origin: The device and the network that were measured.
        batch_sizes: Clips per micro-batch by entry; 0 where not even one kept the limits.
        costs_ms: Time of a micro-batch by bucket, as it was measured at its batch size.
        recomputation: What backward passes compute again, by entry, where the recipe leaves it to memory: that with which a
            clip takes the least time.
        trials: All measurements that memory allowed.
        model_ms: The fitted time of a micro-batch.
        held_out_errors: Relative error at each number of tokens, predicted from the others.
    """

    origin: Origin
    limits: Limits
    batch_sizes: dict[str, int]
    costs_ms: dict[str, BatchTime]
    recomputation: dict[str, Recomputation]
    trials: list[Trial]
    model_ms: CostModel
    held_out_errors: dict[int, float]


@requests.telling(TuneRequest)
def tune(
    request: TuneRequest,
    on_scan: Callable[[ScanProgress], None] | None = None,
    on_trial: Callable[[Trial | str], None] = lambda trial: None,
) -> Tuned:
    """Measure or estimate the largest batch sizes of a recipe, and write the file that its plans use.

    Raises:
        UserError: Not even one clip of the smallest entry fits, or the file cannot be written.
    """
    recipe, table = request.load(on_scan)
    limit = workbench.device_bytes() if request.memory_gb is None else int(request.memory_gb * 1e9)
    limits = Limits(limit, None if request.step_seconds is None else 1000 * request.step_seconds, request.max_batch)
    with log.stage(f"{'estimating' if request.estimate else 'measuring'} the largest batch sizes", at_once=True):
        result = estimated(recipe, table, limits) if request.estimate else measure(recipe, table, limits, on_trial)
    files.write_for("--out", request.path, (files.to_json(result) + "\n").encode())
    return result


def measure(recipe: Recipe, table: BucketTable, limits: Limits, on_trial: Callable[[Trial | str], None]) -> Tuned:
    """Measure the largest bucket of each entry, in a process of its own.

    `on_trial` gets every trial, and a message where memory did not suffice.

    Raises:
        UserError: Not even one clip of the smallest entry fits.
    """
    with workbench.child(recipe, limits.memory_bytes) as process:

        def trial(bucket: Bucket, batch_size: int) -> Trial | None:
            found = process.trial(bucket, batch_size)
            clips = units.plural(batch_size, "clip")
            on_trial(found or f"{bucket.name}, {clips}: memory does not suffice")
            return found

        device = machine.device_name(machine.default_device(0))
        return _search(Origin.of_recipe(recipe, device), table, limits, trial, _ways(recipe))


def estimated(recipe: Recipe, table: BucketTable, limits: Limits) -> Tuned:
    """Estimate the same for a GPU with the memory of `limits`, without one: passes on the meta device.

    Times are of `gpus.USUAL`; their ratios matter.

    Raises:
        UserError: The network cannot run on the meta device, or not even one clip fits.
    """
    denoiser = estimate.network(recipe)
    if not denoiser.runs_on_meta:
        raise UserError(
            "this network cannot run without a device",
            code="no-estimate",
            field="model.name",
            value=recipe.model.name,
            remedy="measure on the GPU, without --estimate",
        )
    fixed = memory.without_activations(recipe, estimate.sizes(recipe, denoiser))

    def trial(bucket: Bucket, batch_size: int) -> Trial:
        peak, _, work = estimate.measured_pass(recipe, denoiser, bucket, batch_size * recipe.clips_per_place)
        seconds = work.seconds(gpus.USUAL, compiled=recipe.train.compile)
        needed = memory.with_activations(recipe, fixed, peak, memory.recomputation(recipe, bucket)).total
        return Trial(bucket.name, bucket.tokens, batch_size, 1000 * seconds, needed)

    return _search(Origin.of_recipe(recipe, ESTIMATE), table, limits, trial, _ways(recipe))


def _ways(recipe: Recipe) -> tuple[Recomputation | None, ...]:
    """Return what backward passes may compute again; None for what the recipe says."""
    return (False, "selective", True) if recipe.model.gradient_checkpointing == "auto" else (None,)


def _search(
    origin: Origin,
    table: BucketTable,
    limits: Limits,
    trial: Callable[[Bucket, int], Trial | None],
    ways: Sequence[Recomputation | None],
) -> Tuned:
    """Search the largest batch size of each entry's largest bucket, and fit the times of all trials.

    With several ways to recompute, an entry gets the one with which a clip takes the least time at its batch size.
    """
    batch_sizes: dict[str, int] = {}
    recomputation: dict[str, Recomputation] = {}
    trials: list[Trial] = []
    at_size: list[Trial] = []
    # The smallest first: if it does not fit, nothing does.
    for bucket in sorted(memory.largest_of_entries(table), key=lambda b: b.tokens):
        entry = str(table.entries[bucket.entry])
        found = {way: search.largest_batch(partial(trial, replace(bucket, recomputation=way)), limits) for way in ways}
        ends = {way: next(t for t in own if t.batch_size == size) for way, (size, own) in found.items() if size}
        best = min(ends, key=lambda way: ends[way].milliseconds / ends[way].batch_size, default=ways[-1])
        batch_sizes[entry], own = found[best]
        if best is not None:
            recomputation[entry] = best
        trials += own
        at_size += [ends[best]] if ends else []
    if not any(batch_sizes.values()):
        least = min((t.peak_bytes for t in trials), default=0)
        smallest = f"; one clip of the smallest takes {units.size(least)}" if least else ""
        raise UserError(
            f"no entry keeps the limits with one clip{smallest}",
            code="out-of-memory",
            field="--memory",
            value=units.size(limits.memory_bytes),
            remedy="raise the limits, set model.gradient_checkpointing or parallel.offload = true, or lower resolutions",
        )
    timings = [Timing(t.tokens, t.batch_size, t.milliseconds) for t in trials]
    model = cost_fit.fit(timings)
    costs_ms = {bucket.name: model.of_clips(bucket.tokens) for bucket in table.buckets}
    costs_ms |= {t.bucket: costs_ms[t.bucket].through(t.batch_size, t.milliseconds) for t in at_size}
    fitted = [replace(t, residual=r) for t, r in zip(trials, model.residuals(timings), strict=True)]
    errors = cost_fit.held_out_errors(timings)
    return Tuned(origin, limits, batch_sizes, costs_ms, recomputation, fitted, model, errors)
