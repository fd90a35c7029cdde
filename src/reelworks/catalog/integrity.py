"""Check that a catalog is intact and conforms to its schema; errors name the row and column that do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelworks.catalog.filter_expression import KINDS_OF_FILE
from reelworks.catalog.rows import CatalogRows, as_numpy
from reelworks.core.errors import UserError

KINDS = (*KINDS_OF_FILE, "other")  # a file of another type is never trained
_NOT_NEGATIVE = (
    *("size_bytes", "num_frames", "height", "width", "fps", "duration_seconds", "bit_depth", "rotation"),
    *("pixel_aspect_ratio", "hidden_frames", "first_frame"),
)
_POSITIVE_IF_READABLE = ("num_frames", "height", "width")
# Training must only open scanned files: no empty or absolute path, and none that leaves the folder.
ROOT = r"^(/|[A-Za-z][A-Za-z0-9+.-]*://)"
OUTSIDE = r"^$|^/|(^|/)\.\.(/|$)|\x00"


def damaged(path: Path, problem: str) -> UserError:
    """Return the error for a catalog that cannot be trusted."""
    return UserError(
        f"the catalog is damaged: {problem}",
        code="catalog-damaged",
        field="catalog",
        value=str(path),
        remedy="restore the folder from a backup, or scan the data into a new catalog with -o DIR",
    )


def check_rows(rows: CatalogRows, path: Path) -> None:
    """Refuse ordinals other than 0, 1, 2, …, files outside their folder, and impossible measures and scores."""
    _refuse(rows.ordinal != np.arange(len(rows)), rows, "ordinal", path)
    _refuse(as_numpy(pc.match_substring_regex(rows.path, OUTSIDE)), rows, "path", path)
    roots = as_numpy(pc.match_substring_regex(rows.root.dictionary, ROOT))
    _refuse(~roots[rows.root.indices], rows, "root", path)
    kinds = as_numpy(pc.is_in(rows.kind.dictionary, pa.array(KINDS)))
    _refuse(~kinds[rows.kind.indices], rows, "kind", path)
    for name in _NOT_NEGATIVE:
        values = getattr(rows, name)
        _refuse(~np.isfinite(values) | (values < 0), rows, name, path)
    for name in _POSITIVE_IF_READABLE:
        _refuse(rows.readable & (getattr(rows, name) < 1), rows, name, path)
    for name, score in rows.scores.items():
        _refuse(np.isinf(score), rows, name, path)


def _refuse(wrong: NDArray[np.bool_], rows: CatalogRows, name: str, path: Path) -> None:
    if wrong.any():
        first = int(np.argmax(wrong))
        values: Any = rows.scores[name] if name in rows.scores else getattr(rows, name)
        raise damaged(path, f"row {first} ({rows.path[first].as_py()!r}) has {name} = {values[first]}")


def check_one_row_per_uid(live: CatalogRows, path: Path) -> None:
    """Check that each clip has one live row, which all other code relies on."""
    ordered = np.sort(live.uid)
    duplicates = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(duplicates):
        names = live.path.take(np.flatnonzero(live.uid == duplicates[0])).to_pylist()
        raise damaged(path, f"two live rows have the uid {int(duplicates[0])}: {', '.join(names)}")


def is_text(kind: Any) -> bool:
    """Return whether an Arrow type is a text, however long."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


# Columns may be narrower than the schema's or encoded differently; numbers stored as text are an error.
_COLUMN_KINDS = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, is_text)


class ColumnError(Exception):
    """A column does not match the schema; the message names the column and the row."""


def conform(table: Any, schema: Any, first: int) -> Any:
    """Cast a table to a schema without loss, and drop columns that the schema lacks.

    A `ColumnError` names the first wrong row; `first` is the number of the table's own first row.
    """
    missing = [name for name in sorted(schema.names) if name not in table.column_names]
    if missing:
        raise ColumnError(f"lacks the columns {', '.join(missing)}")
    return pa.table([_conform(table.column(field.name), field, first) for field in schema], schema=schema)


def _conform(column: Any, field: Any, first: int) -> Any:
    if _kind(column.type) != _kind(field.type):
        raise ColumnError(f"has {field.name} as {column.type} instead of {_plain(field.type)}")
    if column.null_count and not field.nullable:
        raise ColumnError(f"has no {field.name} in row {first + column.is_null().index(True).as_py()}")
    try:
        return _cast(column, field.type)
    except pa.ArrowException as error:
        row = _first_that_fails(column, field.type)
        raise ColumnError(f"has a wrong {field.name} in row {first + row}: {error}") from error


def _plain(kind: Any) -> Any:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _kind(kind: Any) -> list[bool]:
    return [is_kind(_plain(kind)) for is_kind in _COLUMN_KINDS]


def _cast(column: Any, kind: Any) -> Any:
    result = column.cast(kind)
    result.validate(full=True)  # reading a file does not check that texts are UTF-8
    return result


def _first_that_fails(column: Any, kind: Any) -> int:
    """Find the first value that cannot be cast, by bisection: all values before `good` can be cast."""
    good, bad = 0, len(column)
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            _cast(column[good:middle], kind)
            good = middle
        except pa.ArrowException:
            bad = middle
    return good
