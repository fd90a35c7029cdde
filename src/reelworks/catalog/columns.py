"""A part's columns as the schema has them, or the column and row where they cannot be."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

# Columns may be narrower than the schema's or encoded otherwise; numbers written as text are a mistake.
_KINDS = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    lambda t: pa.types.is_string(t) or pa.types.is_large_string(t),
)


class ColumnError(Exception):
    """A column that is not what the schema says; the message names it and the row."""


def conform(table: Any, schema: Any, first: int) -> Any:
    """Cast a table to a schema, without loss; more columns than the schema's are left out.

    Args:
        table: A part's.
        schema: What it must be.
        first: Number of the part's first row, for messages.

    Raises:
        ColumnError: A column is missing or of another kind, or a value is missing, too large, or not UTF-8.
    """
    absent = [name for name in sorted(schema.names) if name not in table.column_names]
    if absent:
        raise ColumnError(f"lacks the columns {', '.join(absent)}")
    return pa.table([_conform(table.column(field.name), field, first) for field in schema], schema=schema)


def _conform(column: Any, field: Any, first: int) -> Any:
    if _kind(column.type) != _kind(field.type):
        raise ColumnError(f"has {field.name} as {column.type} instead of {_plain(field.type)}")
    if column.null_count and not field.nullable:
        missing = column.is_null().index(True).as_py()
        raise ColumnError(f"has no {field.name} in row {first + missing}")
    try:
        return _cast(column, field.type)
    except pa.ArrowException as error:
        row = _first_that_fails(column, field.type)
        raise ColumnError(f"has a wrong {field.name} in row {first + row}: {error}") from error


def _plain(kind: Any) -> Any:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _kind(kind: Any) -> list[bool]:
    return [is_kind(_plain(kind)) for is_kind in _KINDS]


def _cast(column: Any, kind: Any) -> Any:
    result = column.cast(kind)
    result.validate(full=True)  # reading does not look whether texts are UTF-8
    return result


def _first_that_fails(column: Any, kind: Any) -> int:
    """Find the first value that cannot be cast, by halving: those before `good` can be."""
    good, bad = 0, len(column)
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            _cast(column[good:middle], kind)
            good = middle
        except pa.ArrowException:
            bad = middle
    return good
