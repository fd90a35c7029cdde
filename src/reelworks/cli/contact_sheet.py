"""`reelworks contact-sheet`: what each bucket will see."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reelworks.cli.options import DataPath, Json, Overrides, RecipeArgument, load_recipe


def contact_sheet(
    recipe: RecipeArgument,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Default: contact-sheet/ in the run folder."),
    ] = None,
    clips: Annotated[
        int, typer.Option(min=1, help="Clips shown of each bucket, the one that loses most first.")
    ] = 6,
    data_path: DataPath = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Draw what each bucket will see, and what is cut away.

    Draws a contact sheet for each bucket of the first epoch, with the frames that training will read and the whole
    first frame, on which what the crop cuts away is dark. Below them stand the same moments and the same part of
    each companion, and the first frame where the model is shown it. Writes an index page too, and names the clips of
    which most is cut away.

    Scans the data, loads no model.
    """
    from reelworks.cli import show, show_data
    from reelworks.recipe import dataset
    from reelworks.report import contact_sheet_page

    loaded = load_recipe(recipe, overrides, data_path)
    with show.scan_progress(quiet=json) as on_progress:
        dataset.scan_recipe(loaded, on_progress)
    told = contact_sheet_page.write(loaded, output or Path(loaded.output) / "contact-sheet", clips)
    if json:
        show.json(told)
    else:
        show_data.contact_sheet(told)
