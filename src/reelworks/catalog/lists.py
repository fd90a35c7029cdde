"""Lists of files, as CSV, Parquet or JSON lines: paths, captions and scores, a column each.

    path             needed; absolute, or relative to the list's folder or to `root`
    text, caption    the clip's caption; without either, the text file beside it is read
    aes, flow, …     any other column of numbers is a score, which filters and captions may name

What the catalog measures itself is passed over, whatever the list says of it, and so are texts. Columns are
worked on as a whole; only asking the disk for each file's size and time takes one file at a time.
"""

from __future__ import annotations

import csv
import keyword
import math
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet
from numpy.typing import NDArray

from reelworks.catalog import probe
from reelworks.catalog.filter_expression import NUMBERS, TEXTS
from reelworks.catalog.integrity import OUTSIDE
from reelworks.catalog.listing import Listing, SourceFile
from reelworks.catalog.rows import SCHEMA, SCORE, CatalogRows
from reelworks.catalog.source import Source
from reelworks.core.errors import UserError

_NO_FILE = "no such file"
_NO_MEDIA = "its name is neither a video's nor a picture's"
_ROUNDABOUT = r"//|(^|/)\.{1,2}(/|$)|/$"


def relative(paths: Any, source: Source) -> Any:
    """Make a list's paths relative to the dataset's folder.

    Raises:
        UserError: A path is empty, lies outside of the folder, or stands there twice.
    """
    no_path = pc.equal(pc.fill_null(paths, ""), "")
    _refuse_at(no_path, paths, source, "has no path", "fill it in, or take out the row")
    named, root = paths, os.path.normpath(source.root.absolute())
    paths = _straightened(paths, root)
    for prefix in dict.fromkeys((f"{root}/", f"{source.root.resolve()}/")):
        below = pc.starts_with(paths, prefix)
        paths = pc.if_else(below, pc.utf8_slice_codeunits(paths, len(prefix)), paths)
    outside = pc.match_substring_regex(paths, OUTSIDE)
    _refuse_at(outside, paths, source, f"lies outside of {root}", _root_for(named))
    _refuse_twice(paths, source)
    return paths


def _straightened(paths: Any, root: str) -> Any:
    """Make the few paths absolute that are roundabout, so that a file has one name."""
    odd = pc.match_substring_regex(paths, _ROUNDABOUT)
    straight = [
        os.path.normpath(f"{root}/{text}" if text[0] != "/" else text)
        for text in paths.filter(odd).to_pylist()
    ]
    return pc.replace_with_mask(paths, odd, pa.array(straight, paths.type)) if straight else paths


def _root_for(paths: Any) -> str:
    """Suggest a root for absolute paths that do not lie in the dataset's folder."""
    absolute = paths.filter(pc.starts_with(paths, "/"))
    if not len(absolute):
        return "correct the path"
    order = pc.min_max(absolute)  # what the first and the last in order share, all share
    folder = os.path.commonpath([str(Path(order[end].as_py()).parent) for end in ("min", "max")])
    return f'set root (--root of scan) to a folder that all files lie in, as in root = "{folder}"'


def _refuse_twice(paths: Any, source: Source) -> None:
    """One clip cannot have two captions and scores; which of the rows holds is for a person to say."""
    counts = paths.value_counts()
    twice = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    if len(twice):
        one = twice[0].as_py()
        rows = (np.flatnonzero(pc.equal(paths, one).to_numpy(zero_copy_only=False)) + 1).tolist()
        raise UserError(
            f"{len(twice)} files stand in several rows; the first is {one} in rows {', '.join(map(str, rows[:5]))}",
            code="duplicate-path",
            field=f"dataset {source.name!r}",
            value=str(source.list_file),
            remedy="leave one row for each file; dataset.repeats shows clips more than once",
        )


def _refuse_at(wrong: Any, paths: Any, source: Source, problem: str, remedy: str) -> None:
    row = wrong.index(True).as_py()
    if row >= 0:
        path = paths[row].as_py()
        raise UserError(
            f"row {row + 1}{'' if not path else f', {path},'} {problem}",
            code="list-row-invalid",
            field=f"dataset {source.name!r}",
            value=str(source.list_file),
            remedy=remedy,
        )


def entries(paths: Any, source: Source) -> list[SourceFile]:
    """Ask the disk for each file; one that is missing is an entry with that problem.

    Raises:
        UserError: The list names no file that is there: then the folder is wrong or not mounted,
            and no clip is to pass for deleted.
    """
    found = list(_entries(paths.to_pylist(), str(source.root)))
    if all(entry.problem in (_NO_FILE, _NO_MEDIA) for entry in found):
        first = f"; the first is {source.root}/{found[0].path}: {found[0].problem}" if found else ""
        raise UserError(
            f"of the {len(found)} files of the list, none is a video or picture that is there{first}",
            code="no-media",
            field=f"dataset {source.name!r}",
            value=str(source.list_file),
            remedy="check that the disk is mounted, and name the files' folder with root (--root of scan)",
        )
    return found


def _entries(paths: list[str], root: str) -> Iterator[SourceFile]:
    for path in paths:
        if probe.kind_of(path) is None:
            yield SourceFile(path, 0, 0, False, _NO_MEDIA)
            continue
        try:
            # A Path for each of millions of files takes longer than the question.
            status = os.stat(f"{root}/{path}")  # noqa: PTH116
        except (FileNotFoundError, NotADirectoryError):
            yield SourceFile(path, 0, 0, False, _NO_FILE)
        except OSError as error:
            yield SourceFile(path, 0, 0, False, f"cannot be read: {error.strerror}")
        else:
            problem = None if stat.S_ISREG(status.st_mode) else "not a regular file"
            yield SourceFile(path, status.st_size, status.st_mtime_ns, True, problem)


def hold_lines(table: Any) -> bool:
    """Tell whether a cell of a table holds more than one line."""
    texts = (c for c in table.columns if pa.types.is_string(c.type) or pa.types.is_large_string(c.type))
    return any(pc.any(pc.match_substring_regex(column, r"[\r\n]")).as_py() for column in texts)


def check(file: Path) -> None:
    """Go through the quotes of a CSV.

    Raises:
        ValueError: One is not closed, or text stands behind one that is; says in which line the row begins.
    """
    with file.open(encoding="utf-8-sig", errors="replace", newline="") as lines:
        rows = csv.reader(lines, strict=True)
        line = 1
        try:
            for _ in rows:
                line = rows.line_num + 1
        except csv.Error as error:
            raise ValueError(
                f"the row that begins in line {line} has a quote that is not closed ({error})"
            ) from error


PATH, CAPTIONS = "path", ("text", "caption")
MEASURED = frozenset((*SCHEMA.names, *NUMBERS, *TEXTS, "aspect_ratio", "resolution"))
_TEXT = pa.large_string()
_NUMBER = r"^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$"


def read(source: Source) -> Listing:
    """Read a list and look for its files.

    Raises:
        UserError: The list cannot be read, has no column of paths, names a file twice, outside of its
            folder or not at all in some row; or none of its files is there.
    """
    assert source.list_file is not None
    table = _table(source.list_file)
    field, value = f"dataset {source.name!r}", str(source.list_file)
    for name in (PATH, *CAPTIONS):
        if table.column_names.count(name) > 1:
            raise UserError(
                f"two columns are named {name}",
                code="duplicate-column",
                field=field,
                value=value,
                remedy="leave one of them",
            )
    if PATH not in table.column_names:
        raise UserError(
            f"the list has no column named {PATH}; it has {', '.join(table.column_names)}",
            code="list-without-paths",
            field=field,
            value=value,
            remedy=_without_paths(table.column_names),
        )
    paths = relative(table.column(PATH).combine_chunks(), source)
    caption = next((name for name in CAPTIONS if name in table.column_names), None)
    scores, note = _scores(table, value)
    return Listing(
        entries=entries(paths, source),
        captions=None if caption is None else _captions(table.column(caption)),
        scores=scores,
        note=note,
    )


def _table(file: Path) -> Any:
    """The list, with paths and captions as texts."""
    try:
        table = _parsed(file)
        table = table.rename_columns([name.strip() for name in table.column_names])
        for i, name in enumerate(table.column_names):
            if name in (PATH, *CAPTIONS):
                table = table.set_column(i, name, _texts(table.column(i)))
    except (OSError, ValueError, pa.ArrowException) as error:
        problem = "there is no such list" if not file.exists() else f"the list cannot be read: {error}"
        raise UserError(
            problem,
            code="list-unreadable",
            field="dataset.path",
            value=str(file),
            remedy="give a CSV with a line of column names and texts with commas in double quotes, a Parquet file or "
            "JSON lines, in UTF-8",
        ) from error
    return table


def _without_paths(names: list[str]) -> str:
    """Suggest a remedy where no column has the files' names."""
    if len(names) == 1 and any(sign in names[0] for sign in ";\t|"):
        return "separate columns with commas"
    return f"name the column of file names {PATH}"


def _parsed(file: Path) -> Any:
    match file.suffix.lower():
        case ".parquet":
            return pa.parquet.read_table(file)
        case ".jsonl":
            return pa.json.read_json(file)
    return _csv(file)


def _csv(file: Path) -> Any:
    convert = pa.csv.ConvertOptions(
        column_types=dict.fromkeys((PATH, *CAPTIONS), _TEXT),
        null_values=[*pa.csv.ConvertOptions().null_values, "None"],
    )
    parse = pa.csv.ParseOptions(newlines_in_values=True)
    try:
        table = pa.csv.read_csv(file, parse_options=parse, convert_options=convert)
    except pa.ArrowInvalid:
        check(file)  # says it better, if that is what is wrong
        raise
    if hold_lines(table):
        check(file)
    return table


def _texts(column: Any) -> Any:
    """A column as one array of texts; a number becomes its digits, a list of values nothing."""
    if pa.types.is_nested(column.type):
        return pa.nulls(len(column), _TEXT)
    texts = column.cast(_TEXT)
    texts.validate(full=True)  # reading does not look whether texts are UTF-8
    return pa.chunked_array(texts, _TEXT).combine_chunks()


def _captions(column: Any) -> Any:
    """Captions without white space around them; null for none."""
    trimmed = pc.utf8_trim_whitespace(column.combine_chunks())
    return pc.if_else(pc.equal(trimmed, ""), pa.scalar(None, _TEXT), trimmed)


def _scores(table: Any, file: str) -> tuple[dict[str, NDArray[np.float64]], str]:
    """Columns of numbers by name, and a line that says what was taken of the list and what was not."""
    scores: dict[str, NDArray[np.float64]] = {}
    passed_over: list[str] = []
    for name in table.column_names:
        column = table.column(name) if table.column_names.count(name) == 1 else None
        if name in (PATH, *CAPTIONS):
            continue
        if name in MEASURED:
            passed_over.append(f"{name} (measured of the file)")
        elif not name.isidentifier() or keyword.iskeyword(name) or column is None:
            passed_over.append(f'"{name}" (no name that a filter could say, or there twice)')
        elif _is_numeric(column.type):
            scores[name] = _finite(column)
        else:
            passed_over.append(f"{name} ({_why_no_score(column)})")
    told = f"{file}: " + (f"scores {', '.join(scores)}" if scores else "no scores")
    return scores, told + (f"; passed over: {', '.join(passed_over)}" if passed_over else "")


def _is_numeric(kind: Any) -> bool:
    return any(is_kind(kind) for is_kind in (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal))


def _finite(column: Any) -> NDArray[np.float64]:
    """Numbers as float64; NaN for what is missing or infinite."""
    values = column.cast(pa.float64(), safe=False).to_numpy()
    return np.where(np.isfinite(values), values, math.nan)


def _why_no_score(column: Any) -> str:
    """Say of a column of texts whether a few of them spoil a column of numbers."""
    if not pa.types.is_string(column.type) and not pa.types.is_large_string(column.type):
        return "empty" if column.null_count == len(column) else "no numbers"
    is_number = pc.fill_null(pc.match_substring_regex(column, _NUMBER), True)
    bad = is_number.index(False).as_py()
    if bad < 0 or not pc.any(pc.and_(is_number, column.is_valid())).as_py():
        return "no numbers"
    return f"row {bad + 1} has {column[bad].as_py()!r}, which is no number"


Scores = Mapping[str, NDArray[np.float64]]
Places = NDArray[np.int64]


def same_scores(live: CatalogRows, row: Places, scores: Scores, number: Places) -> NDArray[np.bool_]:
    """True where rows have the scores of a list, and no other.

    Args:
        live: The live rows.
        row: Places in `live`.
        scores: Of a list.
        number: Places in the list, one for each of `row`.
    """
    same = np.ones(len(row), dtype=np.bool_)
    for name in {**live.scores, **scores}:
        was, now = (
            column[name][at] if name in column else np.full(len(at), np.nan)
            for column, at in ((live.scores, row), (scores, number))
        )
        same &= (was == now) | (np.isnan(was) & np.isnan(now))
    return same


def same_words(live: CatalogRows, row: Places, captions: Any, root: str) -> NDArray[np.bool_]:
    """True where rows have these captions, null for none, and this root."""
    now, was = captions, live.caption.take(pa.array(row))
    both_missing = pc.and_(pc.is_null(was), pc.is_null(now))
    same = pc.fill_null(pc.equal(was, now), both_missing)
    there = pc.equal(live.root.take(pa.array(row)).cast(pa.string()), root)
    return np.asarray(pc.and_(same, there).to_numpy(zero_copy_only=False), dtype=np.bool_)


def retold(live: CatalogRows, row: Places, captions: Any, root: str, scores: Scores) -> Any:
    """Rows with other captions, root and scores, as a table; their measures stay."""
    table = replace(live.take(row), scores={}).to_table()
    roots = pa.DictionaryArray.from_arrays(np.zeros(len(row), dtype=np.int32), [root])
    for name, column in (("caption", captions), ("root", roots)):
        place = table.schema.get_field_index(name)
        table = table.set_column(place, table.schema.field(place), column)
    for name, score in scores.items():
        table = table.append_column(SCORE + name, pa.array(score, from_pandas=True))
    return table
