"""Read lists of clips as people and programs write them, into a table with a column `path`.

CSV and TSV, JSON lines and JSON, Parquet and folders of it, also packed by gzip; in UTF-8, UTF-16, and older encodings where
these are sure. What is clear is read: names of columns in any case, other separators than commas, quotes with a backslash
before them. What could be read in two ways is refused with the place and a remedy.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from reelworks.catalog import formats, location, remote
from reelworks.catalog.config import list_suffix
from reelworks.catalog.integrity import is_text
from reelworks.catalog.location import MediaPath
from reelworks.catalog.rows import as_numpy
from reelworks.core import text_encoding, user_files
from reelworks.core.errors import UserError

TEXT = pa.large_string()
PATH = "path"
# Names that lists of people and of other trainers give to the columns of paths and of captions, the first that is there.
PATH_NAMES = (
    *(
        PATH,
        "file_name",
        "video_path",
        "image_path",
        "video",
        "image",
        "media_path",
        "file_path",
        "filename",
        "filepath",
    ),
    *("file", "media"),
)
CAPTION_NAMES = ("text", "caption", "prompt", "captions", "text_prompt", "caption_text", "cap")
# Words that programs write for nothing, in lower case: those of pandas, R, SQL and Python.
NOTHING = frozenset(
    [
        "nan",
        "-nan",
        "none",
        "null",
        "nil",
        "n/a",
        "#n/a",
        "na",
        "#na",
        "<na>",
        "1.#ind",
        "-1.#ind",
        "1.#qnan",
        "-1.#qnan",
        "undefined",
    ]
)
_LONGER = 1 + max(map(len, NOTHING))
_SEPARATORS = ",;\t|"
_WITHIN_CELLS = ~np.isin(np.arange(256), list(b',;\t|\r\n"'))
_HEAD_BYTES, _BLOCK_BYTES = 1 << 16, 1 << 22


class ListTable(NamedTuple):
    """A list that was read.

    Attributes:
        table: Its columns with stripped names, paths as texts in `path`, and captions as texts of lines.
        caption: Name of the column of captions; None if there is none.
        is_plain: Whether it is of UTF-8 and, if CSV, of commas and doubled quotes, as this program writes lists.
        notes: What a person should know of how it was read.
    """

    table: Any
    caption: str | None
    is_plain: bool
    notes: tuple[str, ...] = ()


def read(file: MediaPath) -> ListTable:
    """Read a list.

    Raises:
        UserError: It is missing, damaged, or can be read in several ways.
    """
    try:
        path = Path(str(location.local(remote.current(file))))
        table, is_plain, notes = _parsed(path, list_suffix(file.name))
        table = table.rename_columns(renamed(table.column_names))
        caption, unused = caption_column(table.column_names)
        for i, name in enumerate(table.column_names):
            if name == PATH:
                table = table.set_column(i, name, _texts(_of_files(table.column(i))))
            elif name == caption:
                table = table.set_column(i, name, _texts(_joined(table.column(i))))
    except (OSError, ValueError, pa.ArrowException) as error:
        missing = isinstance(error, FileNotFoundError)
        raise UserError(
            "the list does not exist" if missing else f"the list cannot be read: {error}",
            code="list-unreadable",
            field="dataset.path",
            value=str(file),
            remedy="give a CSV file with a header line and double quotes around texts with commas, a Parquet file, or a "
            "JSON lines file, in UTF-8",
        ) from error
    if unused:
        notes = (*notes, f"captions are those of the column {caption}, and not of {', '.join(unused)}")
    return ListTable(table, caption, is_plain, notes)


def renamed(names: Sequence[str]) -> list[str]:
    """Return names of columns without spaces around them, with `path` for that of the paths, in any case."""
    stripped = [name.strip().lstrip("\ufeff") for name in names]
    lower = [name.lower() for name in stripped]
    path = next((lower.index(name) for name in PATH_NAMES if name in lower), None)
    return [PATH if i == path else name for i, name in enumerate(stripped)]


def caption_column(names: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the column of captions, in any case, and others that may be one."""
    known = [name for wanted in CAPTION_NAMES for name in names if name.lower() == wanted]
    return (known[0], known[1:]) if known else (None, [])


def is_nothing(texts: Any) -> Any:
    """Return a mask of texts, an Arrow array without surrounding white space, that are words for nothing."""
    mask = as_numpy(pc.fill_null(pc.less(pc.binary_length(texts), _LONGER), False)).copy()
    short = np.flatnonzero(mask)  # to lower all would take as long as to read them
    mask[short] = as_numpy(pc.is_in(pc.utf8_lower(texts.take(short)), value_set=pa.array(sorted(NOTHING), TEXT)))
    return pa.array(mask)


def _parsed(path: Path, suffix: str) -> tuple[Any, bool, tuple[str, ...]]:
    if suffix == ".parquet":
        parts = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
        for part in parts:
            user_files.require(part, user_files.LIST)
        tables = [pa.parquet.read_table(part) for part in parts]
        return pa.concat_tables(tables, promote_options="permissive"), True, ()
    user_files.require(path, user_files.LIST)
    content, notes = _content(path)
    if suffix in (".jsonl", ".ndjson", ".json"):
        return _json(path, content, is_lines=suffix != ".json"), content is None, notes
    table, is_plain = _csv(path, content, "\t" if suffix == ".tsv" else None)
    return table, is_plain and content is None, notes


def _content(path: Path) -> tuple[bytes | None, tuple[str, ...]]:
    """Return the content of a text in UTF-8, and what is to be told of it; None for a file that is in UTF-8 as it is."""
    is_packed = path.suffix.lower() == ".gz"
    with user_files.opened(path) as file:
        head = file.read(_HEAD_BYTES)
    if not is_packed and _is_utf8(path, head):
        return None, ()
    data = head if not is_packed else b""
    with user_files.opened(path) as file, gzip.open(file) if is_packed else file as opened:
        data = opened.read(user_files.LIST + 1)
    user_files.require_size(path, len(data), user_files.LIST)
    if (text := text_encoding.decoded(data)) is not None:
        return text.encode(), ()
    settled = text_encoding.settle([data])
    if settled.texts[0] is None:
        raise ValueError("it is not UTF-8, and its encoding is not sure: save it as UTF-8")
    return settled.texts[0].encode(), (f"it is read as {next(iter(settled.encodings))}",)


def _is_utf8(path: Path, head: bytes) -> bool:
    if b"\0" in head or head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return False
    decoder = codecs.getincrementaldecoder("utf-8")()
    with user_files.opened(path) as file:
        try:
            while block := file.read(_BLOCK_BYTES):
                decoder.decode(block)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return False
    return True


def _csv(path: Path, content: bytes | None, separator: str | None) -> tuple[Any, bool]:
    opened = _opener(path, content)
    with opened() as file:
        header = _first_line(file.read(_HEAD_BYTES).decode(errors="replace"))
    separator = separator or _separator(header)
    names = next(csv.reader([header], delimiter=separator), [])
    if len(set(names)) == len(names) and renamed(names).count(PATH) == 0 and any(map(formats.kind_of, names)):
        raise ValueError(f"its first line names a file and no columns: write path{separator}text above it")
    escape = _escape(opened, separator)
    texts = [name for name, new in zip(names, renamed(names), strict=True) if new == PATH or _is_caption(new)]
    convert = pa.csv.ConvertOptions(
        column_types=dict.fromkeys(texts, TEXT), null_values=[*pa.csv.ConvertOptions().null_values, "None"]
    )
    parse = pa.csv.ParseOptions(delimiter=separator, newlines_in_values=True, escape_char=escape or False)
    try:
        with opened() as file:
            table = pa.csv.read_csv(file, parse_options=parse, convert_options=convert)
    except pa.ArrowInvalid:
        _check_rows(opened, separator, escape)  # gives a better message
        raise
    found = (column for column in table.columns if is_text(column.type))
    if any(pc.any(pc.match_substring_regex(column, r"[\r\n]")).as_py() for column in found):  # an unclosed quote?
        _check_rows(opened, separator, escape)
    return table, separator == "," and not escape


def _opener(path: Path, content: bytes | None) -> Callable[[], Any]:
    return (lambda: user_files.opened(path)) if content is None else (lambda: io.BytesIO(content))


def _first_line(text: str) -> str:
    return next((line for line in text.lstrip("\ufeff").splitlines() if line.strip()), "")


def _separator(header: str) -> str:
    """Return what separates the columns of a header: commas, unless another sign makes it one of a list."""
    for sign in _SEPARATORS:
        if PATH in renamed(next(csv.reader([header], delimiter=sign), [])):
            return sign
    return ","


def _is_caption(name: str) -> bool:
    return name.lower() in CAPTION_NAMES


def _escape(opened: Callable[[], Any], separator: str) -> str:
    """Return the sign before quotes within cells, a backslash as of MySQL, Spark and R; "" if they are doubled.

    Only one of both reads a list whose quotes are odd; raise `ValueError` if none does.
    """
    with opened() as file:
        before = b"\n"
        while block := file.read(_BLOCK_BYTES):
            if _has_odd_quote(before + block):
                break
            before = (before + block)[-2:]
        else:
            return ""
    try:
        _check_rows(opened, separator, "")
    except ValueError as plain:
        try:
            _check_rows(opened, separator, "\\")
        except ValueError:
            raise plain from None
        return "\\"
    return ""


def _has_odd_quote(data: bytes) -> bool:
    """Return whether a quote neither begins nor ends a cell, nor stands beside another one."""
    signs = np.frombuffer(data, dtype=np.uint8)
    at = np.flatnonzero(signs[1:-1] == ord('"'))
    return bool((_WITHIN_CELLS[signs[at]] & _WITHIN_CELLS[signs[at + 2]]).any())


def _check_rows(opened: Callable[[], Any], separator: str, escape: str) -> None:
    """Refuse a quote that is not closed or is followed by text, and rows with other cells; tell the first line of the row."""
    with opened() as file, io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace", newline="") as lines:
        how: dict[str, Any] = {"escapechar": escape, "doublequote": False} if escape else {}
        rows = csv.reader(lines, delimiter=separator, strict=True, **how)
        line, width = 1, 0
        try:
            for cells in rows:
                width = width or len(cells)
                if cells and len(cells) != width:
                    more = ": put quotes around texts with the separator" if len(cells) > width else ""
                    raise ValueError(f"the row of line {line} has {len(cells)} cells in place of {width}{more}")
                line = rows.line_num + 1
        except csv.Error as error:
            raise ValueError(f"the row that begins in line {line} has an unclosed quote ({error})") from error


def _json(path: Path, content: bytes | None, *, is_lines: bool) -> Any:
    opened = _opener(path, content)
    if is_lines:
        try:
            with opened() as file:
                table = pa.json.read_json(file)
            if not any(
                pa.types.is_temporal(kind) for kind in table.schema.types
            ):  # as of captions that look like dates
                return table
        except pa.ArrowException:
            pass  # values of several kinds, NaN, an array, or longer than a block
    with opened() as file:
        text = file.read().decode("utf-8-sig")
    try:
        return _of_rows(_rows(user_files.parse_json(text)))
    except ValueError:
        if not is_lines:
            raise
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            rows += [json.loads(line)] if line.strip() else []
        except ValueError as error:
            raise ValueError(f"line {number} is no JSON ({error})") from error
    return _of_rows(_rows(rows))


def _rows(value: Any) -> list[dict[str, Any]]:
    """Return the rows of JSON: an array of objects, an object of columns, or one with what belongs to each path."""
    if isinstance(value, dict) and value and all(isinstance(one, list) for one in value.values()):
        names, columns = list(value), list(value.values())
        if len({len(column) for column in columns}) == 1 and PATH in renamed(names):
            return [dict(zip(names, cells, strict=True)) for cells in zip(*columns, strict=True)]
    if isinstance(value, dict) and value and all(formats.kind_of(name) for name in value):
        return [{PATH: name} | (of if isinstance(of, dict) else {"text": of}) for name, of in value.items()]
    rows = [value] if isinstance(value, dict) else value
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(
            'it has other values than objects with a path and a text, such as {"path": "a.mp4", "text": "a cat"}'
        )
    return rows


def _of_rows(rows: Iterable[dict[str, Any]]) -> Any:
    rows = list(rows)
    names = list(dict.fromkeys(name for row in rows for name in row))
    return pa.table({name: _column([row.get(name) for row in rows]) for name in names})


def _column(values: list[Any]) -> Any:
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} or len(kinds) == 1:
        try:
            return pa.array(values)
        except (pa.ArrowException, OverflowError):
            pass
    return pa.array([_as_text(value) for value in values], TEXT)


def _as_text(value: Any) -> str | None:
    if isinstance(value, list):
        return "\n".join(" ".join(text.split()) for one in value if (text := _as_text(one)))
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _of_files(column: Any) -> Any:
    """Return the paths of a column of videos or pictures as Hugging Face has them, and any other column as it is."""
    if not pa.types.is_struct(column.type) or "path" not in {field.name for field in column.type}:
        return column
    paths = pc.struct_field(column, "path")
    if paths.null_count == len(paths):
        raise ValueError(
            "its files are inside of it, and not beside it: write them to a folder, with their names in the list"
        )
    return paths


def _texts(column: Any) -> Any:
    """Return a column as one array of texts; numbers become their digits, nested values null."""
    if pa.types.is_nested(column.type):
        return pa.nulls(len(column), TEXT)
    texts = column.cast(TEXT)
    texts.validate(full=True)  # reading a file does not check that texts are UTF-8
    return pa.chunked_array(texts, TEXT).combine_chunks()


def _joined(column: Any) -> Any:
    """Return a column of lists as one of texts, with a line for each text of a list; leave any other column alone."""
    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        return column
    lists = column.combine_chunks()
    texts = _texts(pa.chunked_array([lists.flatten()]))
    single = pc.fill_null(pc.replace_substring_regex(texts, pattern=r"\s*[\r\n]\s*", replacement=" "), "")
    single = pc.if_else(is_nothing(pc.utf8_trim_whitespace(single)), "", single)
    ends = np.cumsum(as_numpy(pc.fill_null(pc.list_value_length(lists), 0)))
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, single), pa.scalar("\n", TEXT))
    return pa.chunked_array([joined], TEXT)
