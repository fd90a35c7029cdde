"""`reelworks scan` and `reelworks inspect`: write a catalog of the clips on disk, and summarise it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from reelworks.commands import show
from reelworks.commands.app import App
from reelworks.commands.options import EngineOption, Html, Json, load_recipe

if TYPE_CHECKING:
    from reelworks.annexes.quality.inspect import Inspection
    from reelworks.data.catalog.scan.scan import ScanResult
    from reelworks.data.catalog.store.summary import Histogram, Summary
    from reelworks.reports.columns import ColumnLimits, Loss

_FILES_SHOWN = 3
_BAD_FILES_SHOWN = 50

app = App(help="Maintain a catalog.", no_args_is_help=True, rich_markup_mode=None)


def scan(
    paths: Annotated[
        list[str],
        Argument(
            metavar="DIR...",
            help="Folders of clips, pictures and tar archives of them, addresses such as s3://bucket/clips, or lists: "
            ".csv, .parquet or .jsonl with a column path.",
        ),
    ],
    output: Annotated[Path, Option("--output", "-o", metavar="CATALOG", help="The catalog's folder.")],
    workers: Annotated[
        int | None,
        Option(min=1, help="Number of threads, or of processes from 2000 files on; default: one for each core."),
    ] = None,
    root: Annotated[
        str | None,
        Option(metavar="DIR", help="Folder or address that paths of lists are relative to; default: the list's."),
    ] = None,
    engine: EngineOption = "local",
    json: Json = False,
) -> None:
    """Probe clips and pictures and write the results to a catalog.

    A bad file becomes a row with its reason and never stops the scan. Another scan opens only files that changed.

    With --engine ray, files are listed here and examined by tasks on all nodes of a cluster, which must see the same
    folders; the catalog is the same.
    """
    from reelworks.core import cores
    from reelworks.data.catalog.config import Source
    from reelworks.data.catalog.scan.scan import ScanReport, scan_sources
    from reelworks.data.catalog.store.store import Catalog
    from reelworks.data.catalog.store.summary import summarise

    sources = [Source.from_path(path, root=root) for path in paths]
    with show.stdout_for_json(json), show.scan_progress(quiet=json) as on_progress:
        result = scan_sources(sources, output, workers=workers or cores.count(), on_progress=on_progress, engine=engine)
    summary = summarise(Catalog.open(output).live())
    show.json(ScanReport(result, summary)) if json else _print_scan(result, summary)


def _print_scan(result: ScanResult, summary: Summary) -> None:
    kinds = ", ".join(f"{count} {kind}s" for kind, count in summary.by_kind)
    show.line(
        f"{result.found} files: {kinds}, {result.bad} bad; {result.new} new, {result.changed} changed, "
        f"{result.unchanged} unchanged, {result.removed} removed"
    )
    show.line(f"captions: {summary.captions_missing} missing, {summary.captions_empty} empty")
    if summary.with_sound:
        show.line(f"sound: {summary.with_sound} videos")
    for note in result.notes:
        show.line(note)
    for path, reason in result.bad_files[:_BAD_FILES_SHOWN]:
        show.line(f"  bad: {path}: {reason}")
    if result.bad > _BAD_FILES_SHOWN:
        show.line(f"  and {result.bad - _BAD_FILES_SHOWN} more bad files; --json lists them. By reason:")
        _print_reasons(summary)
    _print_histogram("resolution", summary.resolution)
    _print_histogram("frames", summary.num_frames)
    _print_histogram("fps", summary.fps)
    _print_histogram("aspect", summary.aspect_ratio)
    for name, histogram in summary.scores.items():
        _print_histogram(name, histogram)


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


@app.command(doing="rewriting the catalog")
def compact(
    catalog: Annotated[Path, Argument(metavar="CATALOG", help="A catalog's folder.")],
    json: Json = False,
) -> None:
    """Rewrite a catalog without the rows of files that changed or vanished.

    It is then read faster, since all that remains of such a row are 16 bytes on disk. Runs go on as before; only
    versions of the catalog before this one can no longer be opened. May be killed at any time.
    """
    from reelworks.core import units
    from reelworks.data.catalog.store.compact import compact as compact_catalog

    done = compact_catalog(catalog)
    if json:
        show.json(done)
    else:
        show.line(
            f"{done.rows} rows, {done.dropped} retired ones dropped; "
            f"{units.size(done.bytes_before)} before, {units.size(done.bytes_after)} now"
        )


def _print_inspection(inspected: Inspection, html: Path | None) -> None:
    s = inspected.summary
    kinds = ", ".join(f"{count} {kind}s" for kind, count in s.by_kind)
    show.line(f"{s.clips} clips: {kinds}, {s.bad} unreadable; {s.duration_seconds:.0f} s of video")
    if s.with_sound:
        show.line(f"{s.with_sound} videos with sound")
    _print_reasons(s)
    for title, unit, histogram in inspected.histograms:
        _print_histogram(f"{title} ({unit})", histogram, max(12, *(len(label) for label, _ in histogram)))
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
    show.line(inspected.proposal.toml)
    if html is not None:
        show.line(str(html))


def _print_columns(columns: Sequence[ColumnLimits]) -> None:
    from reelworks.core import units

    show.line("\nwhat a limit at a percentile would leave out: clips, hours of video, latent tokens of an epoch")
    for column in columns:
        lacking = f", {units.plural(column.missing, 'clip')} without it" if column.missing else ""
        show.line(f"\n{column.name}" + (f" ({column.unit})" if column.unit else "") + lacking)
        table = show.new_table("percentile", "limit", "loses", "limit", "loses", "clip there")
        for _, same in itertools.groupby(column.percentiles, key=lambda one: one.value):
            first, *others = same
            label = f"{first.percentile} to {others[-1].percentile}" if others else str(first.percentile)
            cells = [text for limit, loss in first.limits for text in (limit, _loss(loss))]
            table.add_row(label, *cells, first.files[0])
        show.print_table(table)


def _loss(loss: Loss) -> str:
    return f"{loss.clips}, {loss.hours:.2f} h, {loss.tokens}" if loss.clips else "–"


def _print_reasons(summary: Summary) -> None:
    for reason, count in summary.bad_reasons:
        show.line(f"  {count} × {reason}")


def _print_histogram(title: str, histogram: Histogram, width: int = 12) -> None:
    largest = max((count for _, count in histogram), default=1)
    show.line(f"\n{title}")
    for label, count in histogram:
        show.line(f"  {label:>{width}}  {'█' * math.ceil(30 * count / largest):<30}  {count}")
