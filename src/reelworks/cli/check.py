"""`reelworks check`: check the dtypes of a recipe and estimate its memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from reelworks.cli.exit_codes import ExitCode
from reelworks.cli.options import DataPath, Json, Overrides, RecipeArgument, load_recipe

if TYPE_CHECKING:
    from reelworks.buckets.table import BucketTable
    from reelworks.recipe.recipe import Recipe


def check(
    recipe: RecipeArgument,
    world: Annotated[int, typer.Option(min=1, help="Processes to check and to estimate memory for.")] = 1,
    data_path: DataPath = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Check dtypes and memory, without training.

    Loads the model, runs the shape of every bucket on the meta device, and runs the largest bucket of each
    resolution for real, forward and backward. Reads no data, unless buckets have to be proposed from them.

    Prints the dtypes of each component, the casts of its inputs, the number of parameters, and the estimated memory of
    one process: weights, gradients, optimizer, weight average, encoders, and the peak of activations in a pass,
    recomputation included.

    Each violation is reported with the path of its module, both dtypes and a remedy, and the exit code is 1.
    `train` checks only the largest bucket at each start.
    """
    from reelworks.cli import show, show_check

    loaded, table = _with_buckets(load_recipe(recipe, overrides, data_path), quiet=json)
    from reelworks.train.preflight.check import check_recipe

    report = check_recipe(loaded, table, world)
    show.json(report.to_json()) if json else show_check.report(report)
    if report.violations:
        raise typer.Exit(ExitCode.FAILED)


def _with_buckets(recipe: Recipe, quiet: bool) -> tuple[Recipe, BucketTable]:
    """Return recipe and bucket table; scan the data only if entries have to be proposed from them."""
    from reelworks.buckets import table
    from reelworks.cli import show
    from reelworks.models.components import geometry
    from reelworks.recipe import dataset
    from reelworks.recipe.dataset import RecipeData

    if recipe.buckets.proposes:
        with show.scan_progress(quiet=quiet) as on_progress:
            dataset.scan_recipe(recipe, on_progress)
        data = RecipeData.open(recipe)
        return data.recipe, data.table
    return recipe, table.build(recipe.bucket, recipe.buckets, geometry(recipe.model, recipe.autoencoder))
