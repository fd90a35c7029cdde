"""Lists of files, as CSV, Parquet or JSON lines: paths, captions and scores, a column each.

    path             needed; absolute, or relative to the list's folder or to `root`
    text, caption    the clip's caption; without either, the text file beside it is read
    aes, flow, …     any other column of numbers is a score, which filters and captions may name

What the catalog measures itself is passed over, whatever the list says of it, and so are texts. Columns are
worked on as a whole; only asking the disk for each file's size and time takes one file at a time.
"""

from __future__ import annotations

import keyword
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet
from numpy.typing import NDArray

from reelworks.catalog import list_paths, quotes
from reelworks.catalog.expression_parts import NUMBERS, TEXTS
from reelworks.catalog.rows import SCHEMA
from reelworks.catalog.source import Source
from reelworks.catalog.walk import Listing
from reelworks.core.errors import UserError

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
                f"two columns are named {name}", field=field, value=value, remedy="leave one of them"
            )
    if PATH not in table.column_names:
        raise UserError(
            f"the list has no column named {PATH}; it has {', '.join(table.column_names)}",
            field=field,
            value=value,
            remedy=_without_paths(table.column_names),
        )
    paths = list_paths.relative(table.column(PATH).combine_chunks(), source)
    caption = next((name for name in CAPTIONS if name in table.column_names), None)
    scores, note = _scores(table, value)
    return Listing(
        entries=list_paths.entries(paths, source),
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
            field="dataset.path",
            value=str(file),
            remedy="give a CSV with a line of column names and texts with commas in double quotes, a Parquet file or "
            "JSON lines, in UTF-8",
        ) from error
    return table


def _without_paths(names: list[str]) -> str:
    """What to do where no column has the files' names."""
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
        quotes.check(file)  # says it better, if that is what is wrong
        raise
    if quotes.hold_lines(table):
        quotes.check(file)
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
