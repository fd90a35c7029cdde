"""`reelworks check`: whether the dtypes of a recipe fit together, and what memory it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from reelworks.cli.options import DataPath, Json, Overrides, RecipeArgument, load_recipe

if TYPE_CHECKING:
    from reelworks.buckets.table import BucketTable
    from reelworks.recipe.recipe import Recipe

EXIT_VIOLATIONS = 1


def check(
    recipe: RecipeArgument,
    world: Annotated[int, typer.Option(min=1, help="Processes to audit and estimate memory for.")] = 1,
    data_path: DataPath = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Check dtypes and memory, without training.

    Loads the model, tries the shape of every bucket without numbers, and the largest bucket of each
    resolution for real, forward and backward. Leaves with 1 if two dtypes meet that must not.
    """
    from reelworks.cli import show, show_check

    loaded, table = _with_buckets(load_recipe(recipe, overrides, data_path), quiet=json)
    from reelworks.train.preflight import check as checking

    report = checking.check(loaded, table, world)
    show.json(report.to_json()) if json else show_check.report(report)
    if report.violations:
        raise typer.Exit(EXIT_VIOLATIONS)


def _with_buckets(recipe: Recipe, quiet: bool) -> tuple[Recipe, BucketTable]:
    """The bucket table; only where entries are to be proposed it takes a scan."""
    from reelworks.buckets import table
    from reelworks.cli import show
    from reelworks.models.config import geometry
    from reelworks.recipe import dataset
    from reelworks.recipe.dataset import RecipeData

    if recipe.buckets.proposes:
        with show.scan_progress(quiet=quiet) as on_progress:
            dataset.scan_recipe(recipe, on_progress)
        data = RecipeData.open(recipe)
        return data.recipe, data.table
    return recipe, table.build(recipe.bucket, recipe.buckets, geometry(recipe.model, recipe.autoencoder))
