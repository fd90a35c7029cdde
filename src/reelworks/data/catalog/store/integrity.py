"""Check that a catalog is intact and conforms to its schema; errors name the row and column that do not."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reelworks.core import system
from reelworks.core.arrays import Mask
from reelworks.core.errors import UserError
from reelworks.data.catalog.filter_expression import KINDS_OF_FILE
from reelworks.data.catalog.store.rows import CatalogRows
from reelworks.data.catalog.store.schema import SCORE, as_column, as_numpy

KINDS = (*KINDS_OF_FILE, "sound", "other")  # sounds are sources alone, and a file of another type is never trained
_NOT_NEGATIVE = (
    *("size_bytes", "num_frames", "height", "width", "fps", "duration_seconds", "bit_depth", "rotation"),
    *("pixel_aspect_ratio", "hidden_frames", "first_frame"),
)
_POSITIVE_IF_READABLE = ("num_frames", "height", "width")
# Training must only open scanned files: no empty or absolute path, and none that leaves the folder.
ROOT = r"^(/|[A-Za-z]:/|[A-Za-z][A-Za-z0-9+.-]*://)"
OUTSIDE = "|".join(filter(None, [r"^$|^/|(^|/)\.\.(/|$)|\x00", system.ELSEWHERE]))


def damaged(path: Path, problem: str) -> UserError:
    """Return the error for a catalog that cannot be trusted."""
    return UserError(
        f"the catalog is damaged: {problem}",
        code="catalog-damaged",
        field="catalog",
        value=str(path),
        remedy="restore the folder from a backup, or scan the data into a new catalog with -o DIR",
    )


def wrong(name: str, column: Any, readable: Callable[[], Mask]) -> Mask | None:
    """Return a mask of impossible values: files outside their folder, measures and scores that cannot be.

    Args:
        name: Name of the column; None is returned for one whose values are all possible.
        column: Values, as `CatalogRows` has them.
        readable: Returns a mask of the rows without an error.
    """
    if name == "path":
        # The expression takes ten times as long as all else that is checked.
        return as_numpy(pc.match_substring_regex(column, OUTSIDE)) if _may_leave(column) else None
    if name in ("root", "kind"):
        words = column.dictionary
        good = pc.match_substring_regex(words, ROOT) if name == "root" else pc.is_in(words, pa.array(KINDS))
        return np.asarray(~as_numpy(good)[as_numpy(column.indices)])
    least = 1 if name in _POSITIVE_IF_READABLE else 0
    if name in _NOT_NEGATIVE and len(column) and least <= column.min() and column.max() < np.inf:  # False for NaN
        return None
    if name in _POSITIVE_IF_READABLE:
        return np.asarray((column < 0) | (readable() & (column < 1)))
    if name in _NOT_NEGATIVE:
        return np.asarray(~np.isfinite(column) | (column < 0))
    return np.asarray(np.isinf(column)) if name.startswith(SCORE) else None


def problems(table: Any) -> dict[int, str]:
    """Return what is impossible in rows that are to be written, by their index: what reading them would refuse."""
    found: dict[int, str] = {}
    columns = {name: as_column(name, table.column(name).combine_chunks()) for name in table.column_names}
    for name, column in columns.items():
        mask = wrong(name, column, lambda: as_numpy(columns["error"].is_null()))
        for at in np.flatnonzero(mask).tolist() if mask is not None else ():
            found.setdefault(at, f"damaged: {name.removeprefix(SCORE)} = {column[at]}")
    return found


def _may_leave(paths: Any) -> bool:
    """Return whether any path may be empty, absolute or outside its folder, by the bytes of all of them together."""
    _, offset_buffer, data_buffer = paths.buffers()
    if not len(paths) or data_buffer is None:
        return bool(len(paths))
    offsets = np.frombuffer(offset_buffer, dtype=np.int64)[paths.offset : paths.offset + len(paths) + 1]
    if (offsets[1:] == offsets[:-1]).any():
        return True
    data = np.frombuffer(data_buffer, dtype=np.uint8)
    text = data[offsets[0] : offsets[-1]]
    if system.ELSEWHERE and np.isin(text, tuple(b":\\")).any():
        return True
    dots = text == ord(".")
    return bool((dots[1:] & dots[:-1]).any() or text.min() == 0 or (data[offsets[:-1]] == ord("/")).any())


def check_one_row_per_uid(rows: CatalogRows, alive: Mask, path: Path) -> None:
    """Check that each clip has one live row, by a mask of these, which all other code relies on."""
    ordered = np.sort(rows.uid[alive])
    if not (ordered[1:] == ordered[:-1]).any():
        return
    duplicate = ordered[1:][ordered[1:] == ordered[:-1]][0]
    names = rows.path.take(pa.array(np.flatnonzero(alive & (rows.uid == duplicate)))).to_pylist()
    raise damaged(path, f"two live rows have the uid {int(duplicate)}: {', '.join(names)}")


def is_text(kind: Any) -> bool:
    """Return whether an Arrow type is a text, however long."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


# Columns may be narrower than the schema's or encoded differently; numbers stored as text are an error.
_COLUMN_KINDS = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, is_text)


class ColumnError(Exception):
    """A column does not match the schema; the message names the column and the row."""


def require_columns(names: Collection[str], schema: Any) -> None:
    """Raise a `ColumnError` for columns of a schema that are missing."""
    missing = [name for name in sorted(schema.names) if name not in names]
    if missing:
        raise ColumnError(f"lacks the columns {', '.join(missing)}")


def conform(table: Any, schema: Any, first: int) -> Any:
    """Cast a table to a schema without loss, and drop columns that the schema lacks.

    A `ColumnError` names the first wrong row; `first` is the number of the table's own first row.
    """
    require_columns(table.column_names, schema)
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


def no_catalog(path: Path) -> UserError:
    """Return the error for a folder without a catalog, which may be one of footage, of a run, or closed to this user."""
    problem, remedy = "there is no catalog in this folder", f"create one with: reelworks scan DIR -o {_quoted(path)}"
    if path.is_dir() and not os.access(path, os.R_OK | os.X_OK):
        problem, remedy = "this folder cannot be read", "correct its permissions"
    elif (path / "catalog" / "catalog.json").is_file():
        remedy = f"did you mean {path / 'catalog'}?"
    elif path.is_dir() and any(path.iterdir()):
        remedy = f"scan the folder, into another one: reelworks scan {_quoted(path)} -o CATALOG"
    return UserError(problem, code="no-catalog", field="catalog", value=str(path), remedy=remedy)


def _quoted(path: Path) -> str:
    return system.quoted(str(path))
