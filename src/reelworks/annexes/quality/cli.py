"""`reelworks measure` and `reelworks inspect`: measure the clips of a catalog, and tell what they are like."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from reelworks.commands import show
from reelworks.commands.options import EngineOption, Html, Json, load_recipe
from reelworks.core import units

if TYPE_CHECKING:
    from reelworks.annexes.quality.inspect import Inspection
    from reelworks.annexes.quality.run import MeasureResult
    from reelworks.reports.columns import ColumnLimits

_FAILED_SHOWN = 20
_FILES_SHOWN = 3


def measure(
    catalog: Annotated[Path, Argument(metavar="CATALOG", help="A catalog's folder.")],
    only: Annotated[
        list[str] | None,
        Option(
            metavar="NAME",
            help="A measure, one with a network, as in agreement=models/clip, or a class of yours, as in faces.py:Faces; "
            "several: repeat it. Default: all without networks.",
        ),
    ] = None,
    workers: Annotated[
        int | None, Option(min=1, help="Number of processes that decode; default: one for each core.")
    ] = None,
    timeout: Annotated[
        float, Option(min=1, help="Seconds for one clip, after which it is left without values.")
    ] = 600.0,
    engine: EngineOption = "local",
    json: Json = False,
) -> None:
    """Measure clips: sharpness, exposure, noise, blockiness, colourfulness, borders, motion, cuts, duplicates and sound.

    The values become columns of the catalog, which filters and captions of recipes can use, and scan and inspect show. Only
    what is missing is measured, and a clip never twice: values are kept by content. May be killed at any time; the same command
    goes on. docs/how-to/know-your-data.md lists the columns.
    """
    from reelworks.annexes.quality.run import measure_catalog

    with show.stdout_for_json(json), show.clip_progress(quiet=json) as on_progress:
        result = measure_catalog(
            catalog, only or (), workers=workers or 0, on_progress=on_progress, engine=engine, timeout_seconds=timeout
        )
    show.json(result) if json else _print(result)


def _print(result: MeasureResult) -> None:
    show.line(f"{result.clips} clips: {result.measured} measured now, {result.changed} rows changed")
    for note in result.notes:
        show.line(note)
    for clip, reason in result.failed[:_FAILED_SHOWN]:
        show.line(f"  not measured: {clip}: {reason}")
    if len(result.failed) > _FAILED_SHOWN:
        show.line(f"  and {len(result.failed) - _FAILED_SHOWN} more; --json lists them")
    rows = (
        (each.name, each.present, _number(each.low), _number(each.median), _number(each.high), each.unit)
        for each in result.columns
    )
    show.table(("column", "clips", "10 % below", "median", "10 % above", "unit"), rows)


def _number(value: float | None) -> str:
    return "–" if value is None else units.number(value, 4)


def inspect(
    catalog: Annotated[Path, Argument(metavar="CATALOG", help="A catalog's folder.")],
    trigger: Annotated[
        str | None, Option(metavar="WORD", help="The trigger word, for advice on captions without it.")
    ] = None,
    text_encoder: Annotated[
        str | None,
        Option(
            metavar="NAME|PATH",
            help="Text encoder that reads the captions: clip, or a text_encoder.name of recipes, whose limit is known; or a "
            "folder with a tokenizer, by which tokens are counted.",
        ),
    ] = None,
    recipe: Annotated[
        Path | None,
        Option(
            metavar="RECIPE",
            help="Recipe whose first epoch limits are measured on, by its buckets, and whose text encoder reads the captions.",
        ),
    ] = None,
    html: Html = None,
    json: Annotated[
        bool, Option("--json", help="Print one JSON value, with the first 20 files of each advice.")
    ] = False,
) -> None:
    """Summarise a catalog, give advice on its files and propose buckets.

    Prints distributions of resolution, aspect ratio, frames, frame rate, duration, caption length, pictures per
    folder and every score; advice, for instance on empty or overlong captions, few pictures, mixed frame rates
    and duplicate files; and bucket entries to copy into a recipe, each with its reason.

    For height, width, duration, frame rate and every score it names clips at the 1st, 10th, 50th, 90th and 99th
    percentile, and tells which clips, hours, frames and tokens a limit there would leave out, of the recipe or else of
    all readable clips in the proposed buckets. The page that --html writes shows the clips.

    Captions are looked through for the same words in nearly all, for contradictions, leftovers of captioners and scripts that
    the text encoder does not know, and with --trigger, for that word. Caption length is counted in words and punctuation
    marks, of which a tokenizer makes at least as many tokens, or by the tokenizer of --text-encoder or --recipe.
    """
    from reelworks.annexes.quality import caption_needs
    from reelworks.annexes.quality.inspect import inspect_rows, write_inspection
    from reelworks.data.catalog.store import companions
    from reelworks.data.catalog.store.store import Catalog

    config = None if recipe is None else load_recipe(recipe, None)
    data = None
    if config is not None:
        from reelworks.training.recipe.dataset import RecipeData

        data = RecipeData.open(config.model_copy(update={"catalog": str(catalog)}))
    needs = caption_needs.find(trigger, text_encoder, config)
    inspection = inspect_rows(companions.without(Catalog.open(catalog).live()), data, needs)
    if html is not None:
        write_inspection(inspection, catalog, html)
    show.json(inspection) if json else _print_inspection(inspection, html)


def _print_inspection(inspected: Inspection, html: Path | None) -> None:
    s = inspected.summary
    kinds = ", ".join(f"{count} {kind}s" for kind, count in s.by_kind)
    show.line(f"{s.clips} clips: {kinds}, {s.bad} unreadable; {s.duration_seconds:.0f} s of video")
    if s.with_sound:
        show.line(f"{s.with_sound} videos with sound")
    show.reasons(s)
    for title, unit, histogram in inspected.histograms:
        show.histogram(f"{title} ({unit})", histogram, max(12, *(len(label) for label, _ in histogram)))
    if inspected.columns:
        _print_columns(inspected.columns)
    if inspected.advice:
        show.line("\nadvice")
    for advice in inspected.advice:
        show.line(f"  {advice.text}: {advice.remedy}")
        for file in advice.files[:_FILES_SHOWN]:
            show.line(f"    {file}")
        if len(advice.files) > _FILES_SHOWN:
            show.line("    and more; --json lists them")
    show.line("\nproposed buckets")
    show.line(inspected.proposal.toml, is_file=True)
    if html is not None:
        show.line(str(html))


def _print_columns(columns: Sequence[ColumnLimits]) -> None:
    show.line("\nwhat a limit at a percentile would leave out: clips, hours of video, latent tokens of an epoch")
    for column in columns:
        lacking = f", {units.plural(column.missing, 'clip')} without it" if column.missing else ""
        show.line(f"\n{column.name}" + (f" ({column.unit})" if column.unit else "") + lacking)
        rows = []
        for _, same in itertools.groupby(column.percentiles, key=lambda one: one.value):
            first, *others = same
            label = f"{first.percentile} to {others[-1].percentile}" if others else str(first.percentile)
            cells: list[str] = []
            for limit, loss in first.limits:
                cells += limit, f"{loss.clips}, {loss.hours:.2f} h, {loss.tokens}" if loss.clips else "–"
            rows.append((label, *cells, first.files[0]))
        show.table(("percentile", "limit", "loses", "limit", "loses", "clip there"), rows)
