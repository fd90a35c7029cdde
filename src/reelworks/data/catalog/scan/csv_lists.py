"""Read CSV and TSV as people and programs write them: other separators, blank lines, and quotes in several styles.

What can be read in one way alone is read; quotes that are not closed and rows with other cells are refused with their line.
"""

from __future__ import annotations

import csv
import io
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv

from reelworks.core import units
from reelworks.data.catalog.scan.list_columns import PATH, TEXT, is_text, renamed
from reelworks.data.media import formats

Opener = Callable[[], Any]  # opens a list in UTF-8
_SEPARATORS = ",;\t|"
_HEAD_BYTES, _BLOCK_BYTES = 1 << 16, 1 << 22
_MARK = b"\xef\xbb\xbf"
_LONGEST_CELL = (1 << 31) - 1  # a caption may be longer than the 128 KiB that Python allows
_NULLS = [*pa.csv.ConvertOptions().null_values, "None"]


def read(opened: Opener, usual: str, *, as_texts: bool = False) -> tuple[Any, bool]:
    """Return a list as a table, and whether it is as this program writes lists.

    Args:
        opened: Opens the list.
        usual: What separates its columns, unless its header says otherwise.
        as_texts: Whether all columns are texts as they stand, in place of numbers, dates and truth values.

    Raises:
        ValueError: It has no columns, or can be read in no way or in several.
    """
    with opened() as file:
        head = file.read(_HEAD_BYTES).removeprefix(_MARK)
    if named := re.match(rb'"?sep=(.)"?\r?\n', head):  # the first line of lists for Excel
        with opened() as file:
            rest = file.read().removeprefix(_MARK)[named.end() :]
        opened, usual, head = (lambda: io.BytesIO(rest)), named[1].decode(), head[named.end() :]
    header = next((line for line in head.decode(errors="replace").splitlines() if line.strip()), "")
    # The usual sign, unless only another one gives the header a column of paths.
    columns = {sign: next(of_any_length(csv.reader([header], delimiter=sign)), []) for sign in (usual, *_SEPARATORS)}
    separator = next((sign for sign, names in columns.items() if PATH in renamed(names)), usual)
    names = columns[separator]
    if PATH not in renamed(names) and any(map(formats.kind_of, names)):
        raise ValueError(f"its first line names a file and no columns: write path{separator}text above it")
    odd = not _is_well_quoted(opened, separator) and _in_standard_form(opened, separator)
    skipped: list[Any] = []
    texts = names if as_texts else list(filter(is_text, names))
    table = _parsed((lambda: io.BytesIO(odd)) if odd else opened, separator, texts, skipped)
    return table, separator == "," and not (odd or named or skipped)


def _parsed(opened: Opener, separator: str, texts: Sequence[str], skipped: list[Any]) -> Any:
    def invalid(row: Any) -> str:
        if row.text.strip():
            return "error"
        skipped.append(row)
        return "skip"

    convert = pa.csv.ConvertOptions(column_types=dict.fromkeys(texts, TEXT), null_values=_NULLS)
    parse = pa.csv.ParseOptions(delimiter=separator, newlines_in_values=True, invalid_row_handler=invalid)
    try:
        with opened() as file:
            return pa.csv.read_csv(file, parse_options=parse, convert_options=convert)
    except pa.ArrowInvalid:
        with opened() as file:
            deque(_rows(file.read().decode(errors="replace").removeprefix("\ufeff"), separator), 0)  # tells where
        raise


def _is_well_quoted(opened: Opener, separator: str) -> bool:
    """Return whether each quote opens or closes a cell, or is one of two that stand for one."""
    beside = np.zeros(256, dtype=bool)
    beside[list(f'{separator}\r\n"'.encode())] = True
    before, is_open = b"\n", False
    with opened() as file:
        block = file.read(_BLOCK_BYTES).removeprefix(_MARK)
        while True:
            data = before + (block or b"\n")
            if b'"' in data:
                signs = np.frombuffer(data, dtype=np.uint8)
                at = np.flatnonzero(signs[1:-1] == ord('"'))
                opens = (np.arange(len(at)) + is_open) % 2 == 0
                if not beside[signs[np.where(opens, at, at + 2)]].all():
                    return False
                is_open ^= bool(len(at) % 2)
            if not block:
                return not is_open
            before, block = data[-2:], file.read(_BLOCK_BYTES)


def _in_standard_form(opened: Opener, separator: str) -> bytes:
    """Return a list of odd quotes with doubled ones; b"" if it can be read as it is, with quotes within cells.

    Spaces may stand before quotes, or backslashes as MySQL, Spark and R write them.
    """
    with opened() as file:
        text = file.read().decode().removeprefix("\ufeff")
    if re.search(rf'{re.escape(separator)} +"', text):
        with suppress(ValueError):  # the quotes stand within cells
            return _written(_rows(text, separator, spaces=True), separator)
    try:
        deque(_rows(text, separator), 0)
    except ValueError:
        doubled = re.sub(r'\\(["\\\n]|\r\n)', lambda sign: '""' if sign[1] == '"' else sign[1], text)
        with suppress(ValueError):
            return _written(_rows(doubled, separator), separator)
        raise
    return b""


def _written(rows: Iterator[list[str]], separator: str) -> bytes:
    out = io.StringIO(newline="")
    csv.writer(out, delimiter=separator).writerows(rows)
    return out.getvalue().encode()


def of_any_length(rows: Iterator[list[str]]) -> Iterator[list[str]]:
    """Yield the rows of a `csv.reader`, whose cells may be longer than those of other readers in this process."""
    while True:
        former = csv.field_size_limit(_LONGEST_CELL)
        try:
            row = next(rows, None)
        finally:
            csv.field_size_limit(former)
        if row is None:
            return
        yield row


def _rows(text: str, separator: str, *, spaces: bool = False) -> Iterator[list[str]]:
    """Yield rows; raise `ValueError` with the first line of one whose quotes are odd, or which has other cells than the header."""
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True, skipinitialspace=spaces)
    line, width = 1, 0
    try:
        for row in of_any_length(rows):
            if row and (len(row) > 1 or row[0].strip()):
                width = width or len(row)
                if len(row) != width:
                    more = ": put double quotes around texts with the separator" * (len(row) > width)
                    raise ValueError(
                        f"the row of line {line} has {units.plural(len(row), 'cell')} in place of {width}{more}"
                    )
                yield row
            line = rows.line_num + 1
    except csv.Error as error:
        raise ValueError(
            f"the row that begins in line {line} has an unclosed quote, or one that is not doubled within quotes ({error})"
        ) from error
