"""Read lists of files, with a column each for paths, captions and scores.

    path             required; absolute, or relative to the list's folder or to `root`; shard.tar/0001.mp4 is a member of
                     a tar archive. `list_columns` has other names of this column, and of the next
    text             the clip's caption, or a list of them; without one, its caption file is read
    start_frame, end_frame, or start_seconds, end_seconds
                     the clip is a range of the file: the frames from the start on and before the end
    aes, flow, …     any other column of numbers is a score, which filters and captions may use

Columns of values that the catalog measures itself, and other columns of texts, are ignored. Columns are processed
as arrays; only the size and time of each file are looked up one by one.
"""

from __future__ import annotations

import keyword
import math
import os
from collections import Counter
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelworks.core import system
from reelworks.core.errors import UserError
from reelworks.core.units import plural
from reelworks.data.catalog.config import Source
from reelworks.data.catalog.filter_expression import NUMBERS, TEXTS
from reelworks.data.catalog.scan import list_files, list_tables
from reelworks.data.catalog.scan.list_columns import CAPTION_NAMES, PATH, RANGES, TEXT
from reelworks.data.catalog.scan.source_files import Listing, SourceFile
from reelworks.data.catalog.store.integrity import OUTSIDE, ROOT, is_text
from reelworks.data.catalog.store.schema import SCHEMA, as_numpy
from reelworks.data.media import formats, probe, storages

_ROUNDABOUT = r"//|(^|/)\.{1,2}(/|$)|/$"


class ListError(UserError):
    """A list of files cannot be used; names its dataset and the file."""

    def __init__(self, problem: str, source: Source, *, code: str, remedy: str) -> None:
        field, value = f"dataset {source.name!r}", str(source.list_file)
        super().__init__(problem, code=code, field=field, value=value, remedy=remedy)


def _relative(paths: Any, source: Source) -> Any:
    """Make a list's paths relative to the dataset's folder; refuse empty, outside and duplicate ones."""
    no_path = pc.equal(pc.fill_null(paths, ""), "")
    _refuse_at(no_path, paths, source, "has no path", "fill it in, or remove the row")
    secret = pc.match_substring_regex(paths, storages.PASSWORD.pattern)
    _refuse_at(secret, pa.nulls(len(paths)), source, "has an address with a password", "write paths below root")
    root = source.url or Path(os.path.normpath(source.root.absolute())).as_posix()
    if system.WINDOWS and source.url is None:
        paths = pc.replace_substring(paths, "\\", "/")
    named = paths
    # Only the few paths with `//`, `.` or `..` are normalised, so that each file has a single name.
    odd = pc.match_substring_regex(paths, _ROUNDABOUT)
    if source.url is None and pc.any(odd).as_py():
        texts = paths.filter(odd).to_pylist()
        normalised = [t if storages.is_url(t) else Path(os.path.normpath(Path(root, t))).as_posix() for t in texts]
        paths = pc.replace_with_mask(paths, odd, pa.array(normalised, paths.type))
    for prefix in dict.fromkeys(storages.address(folder, "") for folder in (root, source.address)):
        paths = pc.if_else(pc.starts_with(paths, prefix), pc.utf8_slice_codeunits(paths, len(prefix)), paths)
    outside = pc.match_substring_regex(paths, OUTSIDE)
    _refuse_at(outside, paths, source, f"lies outside {root}", _root_for(named))
    return paths


def _root_for(paths: Any) -> str:
    absolute = paths.filter(pc.match_substring_regex(paths, ROOT))
    if not len(absolute):
        return "correct the path"
    if pc.any(pc.match_substring(absolute, "://")).as_py():
        return "make a list of its own for the files of each storage"
    order = pc.min_max(absolute)  # a prefix of the first and the last in sorted order is one of all
    folder = Path(os.path.commonpath([Path(order[end].as_py()).parent for end in ("min", "max")])).as_posix()
    return f'set root (--root of scan) to a folder that contains all files, as in root = "{folder}"'


def _clips(table: Any, paths: Any, source: Source) -> list[str]:
    """Return the range of each row as text (`clip_ranges`), "" for a whole file; nothing if no column has ranges."""
    pairs = [pair for pair in RANGES if any(name in table.column_names for name in pair)]
    if not pairs:
        return []
    given = [name for pair in pairs for name in pair if name in table.column_names]
    if len(pairs) > 1 or source.cut:
        raise ListError(
            f"the list has the columns {', '.join(given)}, which give ranges of files"
            + (", and the dataset cuts its videos too" if source.cut else " in two ways"),
            source,
            code="ranges-given-twice",
            remedy="remove clip_seconds and scene_cuts, or the columns" if source.cut else "keep one pair of columns",
        )
    start, end = (_numbers(table, name, source) for name in pairs[0])
    missing, end = np.isnan(start) & np.isnan(end), np.where(end == math.inf, math.nan, end)
    start = np.where(np.isnan(start), 0.0, start)
    unit = "" if pairs[0] == RANGES[0] else "s"
    wrong = ~missing & ((start < 0) | (end <= start) | np.isinf(start))
    if not unit:
        wrong |= ~missing & ((start != np.floor(start)) | (~np.isnan(end) & (end != np.floor(end))))
    where = f"with {pairs[0][0]} and {pairs[0][1]}"
    _refuse_at(
        pa.array(wrong), paths, source, f"has an invalid range {where}", "give a start from 0 on, and a later end"
    )
    show = repr if unit else lambda number: str(int(number))
    return [
        "" if none else f"{show(a)}{unit}:" + ("" if math.isnan(b) else f"{show(b)}{unit}")
        for a, b, none in zip(start.tolist(), end.tolist(), missing.tolist(), strict=True)
    ]


def _numbers(table: Any, name: str, source: Source) -> NDArray[np.float64]:
    try:
        column = table.column(name) if name in table.column_names else pa.nulls(len(table))
        if is_text(column.type):  # of which empty ones are empty cells
            column = pc.if_else(pc.equal(pc.utf8_trim_whitespace(column), ""), None, column)
        return as_numpy(column.cast(pa.float64(), safe=False))
    except pa.ArrowException as error:
        problem = f"the column {name} has a value that is no number ({error})"
        remedy = "give numbers, or leave cells empty"
        raise ListError(problem, source, code="column-not-of-numbers", remedy=remedy) from error


def _once(paths: Any, clips: list[str], source: Source, table: Any) -> Any:
    """Return a mask of a table's rows that has one of those of a clip, which are equal in all columns but that of paths.

    Refuse a clip in other rows: which of its captions and scores is valid, only the user can tell.
    """
    if clips:
        texts = pa.array([f" {clip}" if clip else "" for clip in clips], TEXT)
        paths = pc.binary_join_element_wise(paths.cast(TEXT), texts, pa.scalar("", TEXT))
    counts = paths.value_counts()
    several = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    rows, kept = np.flatnonzero(as_numpy(pc.is_in(paths, several))), np.ones(len(paths), dtype=np.bool_)
    values = map(repr, table.take(rows).drop_columns(PATH).to_pylist())
    first: dict[str, Any] = {}
    differ: dict[str, None] = {}
    for row, path, value in zip(rows.tolist(), paths.take(rows).to_pylist(), values, strict=True):
        kept[row] = path not in first
        if first.setdefault(path, value) != value:
            differ[path] = None
    if differ:
        path = next(iter(differ))
        twice = (np.flatnonzero(as_numpy(pc.equal(paths, path))) + 1).tolist()
        raise ListError(
            f"{plural(len(differ), 'clip' if clips else 'file')} in several rows that differ; the first is {path} in rows {', '.join(map(str, twice[:5]))}",
            source,
            code="duplicate-path",
            remedy="keep one row for each file, or for each range of one (start_frame, end_frame); to train clips more than once, use dataset.repeats",
        )
    return kept


def _refuse_at(wrong: Any, paths: Any, source: Source, problem: str, remedy: str) -> None:
    row = wrong.index(True).as_py()
    if row >= 0:
        path = paths[row].as_py()
        place = f"row {row + 1}{f', {path},' if path else ''}"
        raise ListError(f"{place} {problem}", source, code="list-row-invalid", remedy=remedy)


def _entries(paths: Any, source: Source, *, captions: bool) -> list[SourceFile]:
    """Look up each file, and `captions` beside it; a missing file becomes an entry with that problem.

    If all are missing, the folder is probably wrong or not mounted, and the clips must not count as deleted.
    """
    files = list_files.look_up(source, paths.to_pylist(), captions=captions)
    if all(file.problem is not None for file in files):
        raise ListError(
            f"none of the {len(files)} files of the list is a video or picture that can be read; the first is "
            f"{source.url or source.root}/{files[0].path}: {files[0].problem}",
            source,
            code="no-media",
            remedy="check that the disk is mounted, and set root (--root of scan) to the files' folder",
        )
    return files


MEASURED = frozenset((*SCHEMA.names, *NUMBERS, *TEXTS, "aspect_ratio", "resolution"))
_NUMERIC = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
_NUMBER = r"^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$"


def read(source: Source) -> Listing:
    """Read a list and look up its files; refuse a list with an invalid row, or without any existing file."""
    assert source.list_file is not None
    table, caption, notes, _ = list_tables.read(source.list_file)
    for name in filter(None, (PATH, caption, *RANGES[0], *RANGES[1], *(_STATED if source.trust_list else ()))):
        if table.column_names.count(name) > 1:
            remedy = "remove or rename one of them"
            raise ListError(f"two columns are named {name}", source, code="duplicate-column", remedy=remedy)
    if PATH not in table.column_names:
        is_one_column = len(table.column_names) == 1 and any(sign in table.column_names[0] for sign in ";\t|")
        told = [*table.column_names[:20], *["…"] * (len(table.column_names) > 20)]
        raise ListError(
            f"the list has no column named {PATH}; it has {', '.join(told) or 'none'}",
            source,
            code="list-without-paths",
            remedy="separate columns with commas" if is_one_column else f"rename the column of file names to {PATH}",
        )
    if not len(table):
        raise ListError("the list has no rows", source, code="no-media", remedy="write a row for each clip")
    paths = _relative(table.column(PATH).combine_chunks(), source)
    clips = _clips(table, paths, source)
    scores, note = _scores(table, caption, str(source.list_file), trusted=source.trust_list)
    if caption is None:
        notes += (f"no column of captions ({', '.join(CAPTION_NAMES)}): those beside the files are read",)
    entries = _entries(paths, source, captions=caption is None)
    if source.trust_list:
        entries = _with_measures(entries, table, source)
    if clips:  # a range is measured in its file, whatever the list states
        entries = [e._replace(clip=c, cut="list", stated=None) if c else e for e, c in zip(entries, clips, strict=True)]
    # By the names that files have there: rows may spell them in several ways.
    if not (kept := _once(pa.array([entry.path for entry in entries], TEXT), clips, source, table)).all():
        notes += (f"rows that are equal to others, and are left out: {(~kept).sum():,}",)
        table, entries = table.filter(kept), [*compress(entries, kept)]
        scores = {name: score[kept] for name, score in scores.items()}
    captions = None if caption is None else table.column(caption).combine_chunks()
    return Listing(entries, captions, scores, "; ".join([note, *notes]), kept)


_STATED = ("num_frames", "height", "width", "fps")
_MOST_STATED = 1 << 40
_STILL = (".jpg", ".jpeg", ".jpe", ".jfif", ".bmp")


def _with_measures(entries: list[SourceFile], table: Any, source: Source) -> list[SourceFile]:
    """Return the entries with the measures of the list's columns; without complete ones, a file is opened."""
    missing = [name for name in ("height", "width") if name not in table.column_names]
    if missing:
        raise ListError(
            f"the list has no column named {' or '.join(missing)}, so it states no sizes to trust",
            source,
            code="list-without-sizes",
            remedy="add the columns num_frames, height, width and fps, or remove trust_list",
        )
    values = np.stack([_numbers(table, name, source) for name in _STATED], axis=1)
    return [
        entry if entry.problem is not None else entry._replace(stated=_probe(entry.path, *row))
        for entry, row in zip(entries, values.tolist(), strict=True)
    ]


def _probe(path: str, num_frames: float, height: float, width: float, fps: float) -> probe.Probe | None:
    if num_frames > 1 and formats.extension_of(path) in _STILL:  # the list errs, or the name does
        return None
    kind = "video" if num_frames > 1 else formats.kind_of(path) or "video"  # pictures of several frames are clips
    if kind == "image":
        num_frames, fps = 1, 0.0
    sizes = float(num_frames), height, width
    are_whole = all(1 <= size <= _MOST_STATED and size.is_integer() for size in sizes)
    if not are_whole or not (0 < fps < math.inf or kind == "image"):
        return None
    return probe.Probe(
        kind=kind,
        num_frames=int(num_frames),
        height=int(height),
        width=int(width),
        fps=fps,
        duration_seconds=num_frames / fps if fps else 0.0,
    )


def _scores(table: Any, caption: str | None, file: str, *, trusted: bool) -> tuple[dict[str, NDArray[np.float64]], str]:
    """Return the finite numbers of columns by name, and a message about which columns were used and which ignored."""
    scores: dict[str, NDArray[np.float64]] = {}
    ignored: list[str] = []
    counts = Counter(table.column_names)
    for name, column in zip(table.column_names, table.columns, strict=True):
        if name in (PATH, caption, *RANGES[0], *RANGES[1]):
            continue
        if trusted and name in _STATED:
            continue
        if name.lower() in MEASURED:
            ignored.append(f"{name} (measured from the file)")
        elif not name.isidentifier() or keyword.iskeyword(name) or counts[name] > 1:
            ignored.append(f'"{name}" (not a valid name in filters, or used by two columns)')
        elif any(is_kind(column.type) for is_kind in _NUMERIC):
            values = column.cast(pa.float64(), safe=False).to_numpy()
            scores[name] = np.where(np.isfinite(values), values, math.nan)
        else:
            ignored.append(f"{name} ({_why_no_score(column)})")
    note = f"{file}: " + (f"scores {', '.join(scores)}" if scores else "no scores")
    return scores, note + (f"; ignored: {', '.join(ignored)}" if ignored else "")


def _why_no_score(column: Any) -> str:
    """Return why a column is not a score, and its first wrong value if other texts in it are numbers."""
    if not is_text(column.type):
        return "empty" if column.null_count == len(column) else "no numbers"
    is_number = pc.fill_null(pc.match_substring_regex(column, _NUMBER), True)
    bad = is_number.index(False).as_py()
    if bad < 0 or not pc.any(pc.and_(is_number, column.is_valid())).as_py():
        return "no numbers"
    return f"row {bad + 1} has {column[bad].as_py()!r}, which is not a number"
