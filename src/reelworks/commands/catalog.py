"""`reelworks scan` and `reelworks catalog`: write a catalog of the clips on disk, and maintain it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from reelworks.commands import show
from reelworks.commands.app import App
from reelworks.commands.options import EngineOption, Json
from reelworks.core.units import plural

if TYPE_CHECKING:
    from reelworks.data.catalog.scan.scan import ScanResult
    from reelworks.data.catalog.store.summary import Summary

_BAD_FILES_SHOWN = 50

app = App(help="Maintain a catalog.", no_args_is_help=True, rich_markup_mode=None)


def scan(
    paths: Annotated[list[str], Argument(metavar="DIR...")],
    output: Annotated[Path, Option("--output", "-o", metavar="CATALOG")],
    workers: Annotated[int | None, Option(min=1)] = None,
    root: Annotated[str | None, Option(metavar="DIR")] = None,
    engine: EngineOption = "local",
    json: Json = False,
) -> None:
    """Probe clips and pictures and write the results to a catalog.

    A bad file becomes a row with its reason and never stops the scan. Another scan opens only files that changed.

    With the engine of a cluster, files are listed here and examined on all its nodes, which must see the same folders; the
    catalog is the same.

    Args:
        paths: Folders of clips, pictures and tar archives of them, addresses such as s3://bucket/clips, or lists: .csv,
            .parquet or .jsonl with a column path.
        output: The catalog's folder.
        workers: Number of threads, or of processes from 2000 files on; default: one for each core.
        root: Folder or address that paths of lists are relative to; default: the list's.
    """
    from reelworks.data.catalog.config import Source
    from reelworks.data.catalog.scan.scan import ScanReport, scan_sources
    from reelworks.data.catalog.store.store import Catalog
    from reelworks.data.catalog.store.summary import summarise

    sources = [Source.from_path(path, root=root) for path in paths]
    with show.stdout_for_json(json), show.scan_progress(quiet=json) as on_progress:
        result = scan_sources(sources, output, workers=workers or 0, on_progress=on_progress, engine=engine)
    summary = summarise(Catalog.open(output).live())
    show.json(ScanReport(result, summary)) if json else _print_scan(result, summary)


def unpack(
    source: Annotated[str, Argument(metavar="SOURCE")],
    output: Annotated[Path, Option("--output", "-o", metavar="DIR")],
    json: Json = False,
) -> None:
    """Write the pictures or videos that Parquet files hold to a folder.

    Datasets of the Hugging Face hub often have them in a column, beside one of captions. Each such column becomes a folder
    with the files and list.parquet, which is given as the path of a dataset. What was broken off goes on.

    Args:
        source: Parquet file, a folder of them, or an address such as hf://datasets/user/name.
        output: Folder of the columns' folders.
    """
    from reelworks.data.catalog.scan.unpack import unpack

    with show.clip_progress(quiet=json, doing="unpacking") as on_progress:
        unpacked = unpack(source, output, on_progress)
    if json:
        show.json(unpacked)
        return
    for one in unpacked:
        empty = f"; {plural(one.empty, 'row')} without one" if one.empty else ""
        show.line(f"{plural(one.files, 'file')}{empty}; list: {one.list}")


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
        show.reasons(summary)
    show.histogram("resolution", summary.resolution)
    show.histogram("frames", summary.num_frames)
    show.histogram("fps", summary.fps)
    show.histogram("aspect", summary.aspect_ratio)
    for name, histogram in summary.scores.items():
        show.histogram(name, histogram)


@app.command(doing="rewriting the catalog")
def compact(catalog: Annotated[Path, Argument(metavar="CATALOG")], json: Json = False) -> None:
    """Rewrite a catalog without the rows of files that changed or vanished.

    It is then read faster, since all that remains of such a row are 16 bytes on disk. Runs go on as before; only
    versions of the catalog before this one can no longer be opened. May be killed at any time.

    Args:
        catalog: A catalog's folder.
    """
    from reelworks.core import units
    from reelworks.data.catalog.store.compact import compact as compact_catalog

    done = compact_catalog(catalog)
    show.json(done) if json else show.line(
        f"{done.rows} rows, {done.dropped} retired ones dropped; "
        f"{units.size(done.bytes_before)} before, {units.size(done.bytes_after)} now"
    )
