"""Read JSON lines, and the arrays and objects of JSON in which programs write lists of clips."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json

from reelworks.core import user_files
from reelworks.data.catalog.scan.list_columns import PATH, TEXT, is_text, renamed
from reelworks.data.media import formats

_HALF = re.compile(r"\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F]")  # of a surrogate pair
_OTHERS = bytes(set(range(256)).difference(b'"[]{}\n'))
_DEEPEST = 500  # levels of values; of many thousands, which Python refuses, Arrow overruns its stack
_BLOCK_BYTES = 1 << 22
_EXAMPLE = 'objects with a path and a text, such as {"path": "a.mp4", "text": "a cat"}'


class _Number(float):
    """A number that is not whole, with its digits as they are written: in a caption, 1.50 is not 1.5."""

    def __init__(self, digits: str) -> None:
        self.digits = digits


def read(opened: Callable[[], Any], *, is_lines: bool) -> tuple[Any, bool]:
    """Return a list as a table, and whether each of its lines is an object, as this program writes lists.

    Raises:
        ValueError: It is no JSON, or no list of clips.
    """
    if is_lines and not _overruns(opened):
        # It takes no values of several kinds, no NaN, no array, and no line longer than a block.
        with suppress(pa.ArrowException):
            with opened() as file:
                table = pa.json.read_json(file)
            # Dates, and numbers that are captions, such as 2.0, are no longer as they were written, also within lists.
            kinds = ((is_text(field.name), str(field.type)) for field in table.schema)
            if not any("timestamp" in kind or (of_texts and "double" in kind) for of_texts, kind in kinds):
                return table, True
    with opened() as file:
        text = file.read().decode("utf-8-sig")
    try:
        return _table(_objects(_parsed(text))), False
    except ValueError as error:
        lines = text.split("\n")
        signs = is_lines, bool(_names(lines[0]))  # of rows; both, if it is JSON as a whole: a single row is
        if not (any(signs) if isinstance(error, json.JSONDecodeError) else all(signs)):
            raise
    return _table(_objects([_line(i, line) for i, line in enumerate(lines, 1) if line.strip()])), True


def _overruns(opened: Callable[[], Any]) -> bool:
    """Return whether Arrow would overrun its stack with levels of values, or memory with a column for each row."""
    with opened() as file:
        while lines := file.readlines(_BLOCK_BYTES):
            signs = b"".join(lines).replace(rb"\\", b"").replace(rb"\"", b"").translate(None, _OTHERS)
            outside = np.frombuffer(re.sub(rb'"[^"\n]*"', b"", signs), dtype=np.uint8)  # of texts
            level = np.cumsum(np.isin(outside, list(b"[{")) * 1 - np.isin(outside, list(b"]}")))
            names = renamed(_names(lines[0]))
            if (names and PATH not in names) or (level - np.minimum.accumulate(level)).max(initial=0) > _DEEPEST:
                return True
    return False


def _names(line: str | bytes) -> list[str]:
    with suppress(ValueError):
        value = user_files.parse_json(line)
        return list(value) if isinstance(value, dict) else []
    return []


def _parsed(text: str) -> Any:
    """Parse JSON; half of a surrogate pair, which no table can hold, becomes "?"."""
    value = user_files.parse_json(text, _Number)
    if _HALF.search(text):
        value = user_files.parse_json(json.dumps(value, ensure_ascii=False).encode(errors="replace").decode())
    return value


def _line(number: int, line: str) -> Any:
    try:
        return _parsed(line)
    except ValueError as error:
        raise ValueError(f"line {number} is no JSON ({error})") from error


def _objects(value: Any) -> list[dict[str, Any]]:
    """Return the rows of JSON: objects, columns by name, what belongs to each path, or these below a single name."""
    if isinstance(value, list):
        if all(isinstance(row, dict) for row in value):
            return value
        raise ValueError(f"it has other values than {_EXAMPLE}")
    if not isinstance(value, dict):
        raise ValueError(f"it has no {_EXAMPLE}")
    if PATH in renamed(list(value)):
        return _of_columns(value)
    if value and all(formats.kind_of(name) for name in value):
        return [{PATH: name} | (of if isinstance(of, dict) else {"text": of}) for name, of in value.items()]
    if len(value) == 1 and isinstance(only := next(iter(value.values())), list | dict):
        return _objects(only)
    raise ValueError(f"it has no {_EXAMPLE}; it has {', '.join(list(value)[:5])}")


def _of_columns(value: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of an object of arrays, or of objects with a value for each row, as pandas writes them."""
    if not all(isinstance(column, list | dict) for column in value.values()):
        return [value]
    columns = [dict(enumerate(column)) if isinstance(column, list) else column for column in value.values()]
    if any(column.keys() != columns[0].keys() for column in columns):
        raise ValueError(f"its columns {', '.join(value)} have values for different rows")
    return [dict(zip(value, (column[row] for column in columns), strict=True)) for row in columns[0]]


def _table(rows: list[dict[str, Any]]) -> Any:
    names = list(dict.fromkeys(name for row in rows for name in row))
    rows = rows if PATH in renamed(names) else []  # else it is refused by its names, of which each row may have one
    return pa.table({name: _column(name, [row.get(name) for row in rows]) for name in names})


def _column(name: str, values: list[Any]) -> Any:
    kinds = {float if isinstance(value, float) else type(value) for value in values if value is not None}
    if is_text(name) and kinds != {dict}:
        if list not in kinds:
            return pa.array([_text(name, value) for value in values], TEXT)
        lists = [value if isinstance(value, list | None) else [value] for value in values]
        return pa.array([one and [_text(name, each) for each in one] for one in lists], pa.list_(TEXT))
    if kinds <= {int, float} or len(kinds) == 1:
        with suppress(pa.ArrowException, OverflowError):
            return pa.array(values)
    return pa.array([value if isinstance(value, str | None) else json.dumps(value) for value in values], TEXT)


def _text(name: str, value: Any) -> str | None:
    if isinstance(value, list | dict):
        raise ValueError(f"the column {name} has objects in place of texts: give each clip a text, or a list of texts")
    if isinstance(value, _Number):
        return value.digits
    return value if isinstance(value, str | None) else json.dumps(value)
