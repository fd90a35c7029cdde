"""`reelworks plan`: what training would do, without training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reelworks.cli.options import DataPath, Json, Overrides, load_recipe

if TYPE_CHECKING:
    from reelworks.recipe.recipe import Recipe


def plan(
    recipes: Annotated[list[Path], typer.Argument(metavar="RECIPE", help="A recipe, or two with --diff.")],
    world: Annotated[int, typer.Option(min=1, help="GPUs to plan for.")] = 1,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs to look ahead.")] = 1,
    diff: Annotated[bool, typer.Option("--diff", help="Compare two recipes and their plans.")] = False,
    data_path: DataPath = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Say what training would do.

    Prints buckets, counts, reasons, steps per epoch, global batches and imbalance of the first epoch; then
    what all epochs asked for come to, and what would cure imbalance or padding above 10 %.
    """
    from reelworks.cli import show, show_plan
    from reelworks.prepare import compare

    _check_count(recipes, diff)
    told = [_forecast(load_recipe(path, overrides, data_path), world, epochs, json) for path in recipes]
    if diff:
        compared = compare.compare(told[0], told[1])
        show.json(compared) if json else show_plan.difference(compared, (str(recipes[0]), str(recipes[1])))
    else:
        show.json(told[0][1]) if json else show_plan.forecast(told[0][1])


def _forecast(recipe: Recipe, world: int, epochs: int, quiet: bool) -> tuple[Recipe, dict[str, Any]]:
    """Bring the catalog up to date and look ahead."""
    from reelworks.cli import show
    from reelworks.prepare import data as preparing
    from reelworks.prepare import forecast

    with show.scan_progress(quiet=quiet) as on_progress:
        preparing.scan(recipe, on_progress)
    return recipe, forecast.forecast(recipe, world, epochs)


def _check_count(recipes: list[Path], diff: bool) -> None:
    from reelworks.core.errors import UserError

    if len(recipes) != (2 if diff else 1):
        raise UserError(
            "--diff compares two recipes" if diff else "one recipe is planned at a time",
            field="RECIPE",
            value=[str(path) for path in recipes],
            remedy="give two, as in --diff a.toml b.toml" if diff else "add --diff to compare two",
        )
