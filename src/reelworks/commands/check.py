"""`reelworks check`: check the dtypes of a recipe and estimate its memory."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

from typer import Exit, Option

from reelworks.commands import show
from reelworks.commands.exit_codes import ExitCode
from reelworks.commands.options import DataPath, Json, Overrides, RecipeArgument, load_recipe, named_stages
from reelworks.core import units

if TYPE_CHECKING:
    from reelworks.training.preflight.check import CheckReport, ComponentReport
    from reelworks.training.recipe.recipe import Recipe


def check(
    recipe: RecipeArgument,
    world: Annotated[int, Option(min=1)] = 1,
    weights: Annotated[bool, Option("--weights")] = False,
    data_path: DataPath = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Check dtypes and memory, without training.

    Loads the model, runs the shape of every bucket on the meta device, and runs the largest bucket of each
    resolution for real, forward and backward. Reads no data, unless buckets have to be proposed from them, or the recipe
    has stages: then it scans the data of each and requires that they have a step.

    Prints the dtypes of each component, the casts of its inputs, the number of parameters, and the estimated memory of
    one process: weights, gradients, optimizer, weight average, encoders, and the peak of activations in a pass,
    recomputation included.

    Kernels of attention are run for every shape on a GPU, and for the largest on a CPU, and compared with exact attention.

    With --weights the network predicts a picture that comes with the program, at three timesteps. The line that is
    printed may be pasted into a report: which weights, how many tensors, and their error.

    Each violation is reported with the path of its module, both dtypes and a remedy, and the exit code is 1.
    `train` runs only the largest bucket for real, at each start, and compares kernels at the first start on a GPU.

    Args:
        world: Processes to check and to estimate memory for.
        weights: Tell also whether the weights predict as trained ones.
    """
    from reelworks.training.recipe import dataset

    violations, whole = 0, load_recipe(recipe, overrides, data_path)
    for stage, name in named_stages(whole, json=json):
        with show.scan_progress(quiet=json) as on_scan:
            loaded, table = dataset.bucket_table(stage, on_scan)
        with show.loading():
            from reelworks.training.preflight.check import check_recipe
        report = check_recipe(loaded, table, max(world, loaded.parallel.group_size), weights=weights)
        if name:
            show.line(f"\nstage {name}")
        show.json(report) if json else _print_report(report)
        violations += len(report.violations)
    _require_stages(whole, world)
    if violations:
        raise Exit(ExitCode.FAILED)


def _require_stages(recipe: Recipe, world: int) -> None:
    from reelworks.training.preflight import stage_data
    from reelworks.training.preflight.check import local_ranks
    from reelworks.training.recipe import dataset

    world = max(world, recipe.parallel.group_size)
    with show.scan_progress() as on_scan:
        scan = partial(dataset.scan_recipe, on_progress=on_scan)
        stage_data.require(recipe, range(len(recipe.stage)), scan, world, local_ranks(world))


def _print_report(report: CheckReport) -> None:
    _dtypes(report.components)
    for component in report.components:
        _casts(component)
    _memory(report)
    show.line(f"{report.shapes} shapes checked on the meta device")
    for rehearsal in report.rehearsed:
        show.line(
            f"{rehearsal.bucket}, batch size {rehearsal.batch_size}: forward and backward in "
            f"{rehearsal.seconds:.1f} s on {report.device}, {units.size(rehearsal.activations_bytes)} of activations; "
            f"recomputed: {rehearsal.recomputed}"
        )
    if (attention := report.attention) is not None:
        for line in attention.lines():
            show.line(line)
    if report.weights is not None:
        show.line(str(report.weights))
    for fault in report.violations:
        show.line(f"violation: {fault.module}: {fault.problem}\n  remedy: {fault.remedy}")
    for warning in report.warnings:
        show.line(f"warning: {warning}")
    count = len(report.violations)
    show.line(units.plural(count, "violation") if count else "no violation")


def _dtypes(components: list[ComponentReport]) -> None:
    """Print a column for each component; columns of dtypes would not fit into 80 characters."""
    columns = [
        component.dtypes | {"device": component.device, "parameters": f"{component.parameters:,}"}
        for component in components
    ]
    rows = ((key, *(column[key] or "–" for column in columns)) for key in columns[0])
    show.table(("", *(f"{component.component}\n{component.name}" for component in components)), rows)


def _casts(component: ComponentReport) -> None:
    if component.base:
        show.line(f"{component.component}: weights of the frozen base: {component.base}")
    inputs: dict[str, list[str]] = {}
    for cast in component.casts:
        words = f"stay {cast.to}" if cast.from_ == cast.to else f"{cast.from_} → {cast.to}"
        inputs.setdefault(words, []).append(cast.input)
    for words, names in inputs.items():
        show.line(f"{component.component}: {', '.join(names)}: {words}")


def _memory(report: CheckReport) -> None:
    memory = report.memory
    parts = [f"{name} {units.size(size)}" for name, size in memory.parts.items() if size]
    on_host = f"; {units.size(memory.host)} of CPU memory" if memory.host else ""
    each = f" of each of {report.world} processes" if report.world > 1 else ""
    show.line(f"\nmemory{each}, estimated: {units.size(memory.total)} ({', '.join(parts)}){on_host}")
    if report.world > 1:
        show.line(report.layout)
