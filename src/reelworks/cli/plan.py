"""`reelworks plan`: what training would do, without training."""

from __future__ import annotations

from typing import Annotated

import typer

from reelworks.cli.options import DataPath, Json, Overrides, RecipeArgument, load_recipe


def plan(
    recipe: RecipeArgument,
    world: Annotated[int, typer.Option(min=1, help="GPUs to plan for.")] = 1,
    data_path: DataPath = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Say what training would do.

    Prints buckets, counts, reasons, steps per epoch, global batches and imbalance of the first epoch.
    """
    from reelworks.cli import show
    from reelworks.prepare import data as preparing
    from reelworks.prepare import forecast

    loaded = load_recipe(recipe, overrides, data_path)
    with show.scan_progress(quiet=json) as on_progress:
        preparing.scan(loaded, on_progress)
    told = forecast.forecast(loaded, world)
    if json:
        show.json(told)
    else:
        show.plan(told)
