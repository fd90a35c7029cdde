"""`reelworks contact-sheet`: draw the frames that training reads from each bucket."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from reelworks.cli import show, show_data
from reelworks.cli.options import DataPath, Json, Overrides, RecipeArgument, load_recipe


def contact_sheet(
    recipe: RecipeArgument,
    output: Annotated[
        Path | None, Option("--output", "-o", metavar="DIR", help="Default: contact-sheet/ in the run folder.")
    ] = None,
    clips: Annotated[
        int, Option(min=1, help="Clips to show for each bucket, those that lose most to the crop first.")
    ] = 6,
    data_path: DataPath = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Draw what training reads of each bucket's clips, and what is cropped away.

    Draws a contact sheet for each bucket of the first epoch: the frames that training will read, and the full first
    frame with the part that the crop removes darkened. Below them it shows the same frames and crop of each companion,
    and the first frame if the model is conditioned on it. Also writes an index page, and lists the clips that lose most
    to the crop.

    Scans the data, loads no model.
    """
    from reelworks.recipe import dataset
    from reelworks.report import contact_sheet_page

    loaded = load_recipe(recipe, overrides, data_path)
    with show.scan_progress(quiet=json) as on_progress:
        dataset.scan_recipe(loaded, on_progress)
    report = contact_sheet_page.write(loaded, output or Path(loaded.output) / "contact-sheet", clips)
    show.json(report) if json else show_data.contact_sheet(report)
