"""`reelworks contact-sheet`: draw the frames that training reads from each bucket."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from reelworks.commands import show
from reelworks.commands.options import DataPath, Json, Overrides, RecipeArgument, load_recipe

if TYPE_CHECKING:
    from reelworks.reports.sheet import ContactSheets

_WORST_SHOWN = 10


def contact_sheet(
    recipe: RecipeArgument,
    output: Annotated[Path | None, Option("--output", "-o", metavar="DIR")] = None,
    clips: Annotated[int, Option(min=1)] = 6,
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

    Args:
        output: Default: contact-sheet/ in the run folder.
        clips: Clips to show for each bucket, those that lose most to the crop first.
    """
    from reelworks.reports import sheet
    from reelworks.training.recipe import dataset

    loaded = load_recipe(recipe, overrides, data_path)
    with show.scan_progress(quiet=json) as on_progress:
        dataset.scan_recipe(loaded, on_progress)
    report = sheet.write_page(loaded, output or Path(loaded.output) / "contact-sheet", clips)
    show.json(report) if json else _print_summary(report)


def _print_summary(sheets: ContactSheets) -> None:
    for bucket in sheets.buckets:
        show.line(
            f"{bucket.name}: {bucket.clips} clip{'s' if bucket.clips > 1 else ''} of {bucket.shape}, "
            f"{bucket.mean_lost:.1%} cropped away on average, {bucket.max_lost:.1%} at most"
        )
        for clip in bucket.shown:
            if clip.error:
                show.line(f"  cannot be trained: {clip.path}: {clip.error}")
    show.line("cropped most")
    for one in sheets.worst[:_WORST_SHOWN]:
        show.line(f"  {one.lost:>6.1%}  {one.path}  {one.width}×{one.height} in {one.bucket}")
    if sheets.short_clips:
        show.line(show.short_clips(sheets.short_clips))
    show.line(str(sheets.index))
