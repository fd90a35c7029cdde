"""`reelworks scan` and `reelworks inspect`: write a catalog of the clips on disk, and summarise it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from reelworks.cli import show
from reelworks.cli.app import App
from reelworks.cli.options import EngineOption, Html, Json, load_recipe

if TYPE_CHECKING:
    from reelworks.catalog.scan import ScanResult
    from reelworks.catalog.summary import Histogram, Summary
    from reelworks.report.columns import Column
    from reelworks.report.inspect import Inspection

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
    from reelworks.catalog.config import Source
    from reelworks.catalog.scan import ScanReport, scan_sources
    from reelworks.catalog.store import Catalog
    from reelworks.catalog.summary import summarise
    from reelworks.core import cores

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
    recipe: Annotated[
        Path | None,
        Option(metavar="RECIPE", help="Tell what limits would leave out of this recipe's first epoch, by its buckets."),
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

    Caption length is counted in words and punctuation marks; a tokenizer makes at least as many tokens.
    """
    from reelworks.catalog import companions
    from reelworks.catalog.store import Catalog
    from reelworks.report.inspect import inspect_rows, write_inspection

    data = None
    if recipe is not None:
        from reelworks.recipe.dataset import RecipeData

        data = RecipeData.open(load_recipe(recipe, None).model_copy(update={"catalog": str(catalog)}))
    inspection = inspect_rows(companions.without(Catalog.open(catalog).live()), data)
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
    from reelworks.catalog.compact import compact as compact_catalog
    from reelworks.core import units

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
    for column in inspected.columns:
        _print_column(column)
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


def _print_column(column: Column) -> None:
    lacking = f", {column.missing} without it" if column.missing else ""
    show.line(f"\nlimits on {column.name}" + (f" ({column.unit})" if column.unit else "") + lacking)
    table = show.new_table("percentile", "limit", "clips lost", "hours", "frames", "tokens", "clip there")
    for one in column.percentiles:
        for i, (limit, loss) in enumerate(one.limits):
            cells = limit, str(loss.clips), f"{loss.hours:.2f}", str(loss.frames), str(loss.tokens)
            table.add_row("" if i else str(one.percentile), *cells, "" if i else one.files[0])
    show.print_table(table)


def _print_reasons(summary: Summary) -> None:
    for reason, count in summary.bad_reasons:
        show.line(f"  {count} × {reason}")


def _print_histogram(title: str, histogram: Histogram, width: int = 12) -> None:
    largest = max((count for _, count in histogram), default=1)
    show.line(f"\n{title}")
    for label, count in histogram:
        show.line(f"  {label:>{width}}  {'█' * math.ceil(30 * count / largest):<30}  {count}")
