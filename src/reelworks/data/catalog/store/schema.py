"""The columns of a catalog: their types, the masks that files of rows have too, and Arrow columns as numpy arrays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelworks.core import optional_imports
from reelworks.core.arrays import F64, Mask

WORD = pa.dictionary(pa.int32(), pa.string())
TEXT = pa.large_string()  # captions of millions of clips exceed the 2 GB that `string` can address
SCORE = "score:"  # prefix of score columns, so that a score cannot replace a measure

optional_imports.settle_arrow()

SCHEMA = pa.schema(
    [
        pa.field("ordinal", pa.int64(), nullable=False),
        pa.field("uid", pa.uint64(), nullable=False),
        pa.field("dataset", WORD, nullable=False),
        pa.field("root", WORD, nullable=False),
        pa.field("path", TEXT, nullable=False),
        pa.field("start", pa.int64(), nullable=False),
        pa.field("kind", WORD, nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("mtime_ns", pa.int64(), nullable=False),
        pa.field("fingerprint", TEXT, nullable=False),
        pa.field("num_frames", pa.int64(), nullable=False),
        pa.field("height", pa.int64(), nullable=False),
        pa.field("width", pa.int64(), nullable=False),
        pa.field("fps", pa.float64(), nullable=False),
        pa.field("duration_seconds", pa.float64(), nullable=False),
        pa.field("codec", WORD, nullable=False),
        pa.field("pixel_format", WORD, nullable=False),
        pa.field("bit_depth", pa.int64(), nullable=False),
        pa.field("rotation", pa.int64(), nullable=False),
        pa.field("variable_fps", pa.bool_(), nullable=False),
        pa.field("has_alpha", pa.bool_(), nullable=False),
        pa.field("mirrored", pa.bool_(), nullable=False),
        pa.field("pixel_aspect_ratio", pa.float64(), nullable=False),
        pa.field("hidden_frames", pa.int64(), nullable=False),
        pa.field("interlaced", pa.bool_(), nullable=False),
        pa.field("color_matrix", WORD, nullable=False),
        pa.field("full_range", pa.bool_(), nullable=False),
        pa.field("hdr", WORD, nullable=False),
        pa.field("icc_profile", WORD, nullable=False),
        pa.field("sound", WORD, nullable=False),
        pa.field("caption", TEXT),
        pa.field("group", TEXT, nullable=False),
        pa.field("first_frame", pa.int64(), nullable=False),
        pa.field("cut", WORD, nullable=False),
        pa.field("error", TEXT),
    ]
)


def with_scores(names: Iterable[str]) -> Any:
    """Return `SCHEMA` with a column for each score."""
    return pa.schema([*SCHEMA, *(pa.field(SCORE + name, pa.float64()) for name in names)])


def with_score(table: pa.Table, name: str, values: F64) -> pa.Table:
    """Return a table with other values of a score, null for NaN; added if the table has none of the name."""
    place, array = table.schema.get_field_index(SCORE + name), pa.array(values, from_pandas=True)
    column = pa.field(SCORE + name, pa.float64())
    return table.append_column(column, array) if place < 0 else table.set_column(place, column, array)


# Masks that files of rows have, too, because the texts that they follow from take long to read: rows with a caption
# that is not empty, rows without any, rows that are a group of their own, and rows without an error.
DERIVED = {
    "captioned": ("caption",),
    "no_caption": ("caption",),
    "own_group": ("group", "path"),
    "readable": ("error",),
}


def derive(name: str, *columns: Any) -> Mask:
    """Return a mask of `DERIVED` from the columns that it is listed with."""
    if name == "captioned":
        return as_numpy(pc.greater(pc.binary_length(columns[0]).fill_null(0), 0))
    if name in ("no_caption", "readable"):
        return as_numpy(columns[0].is_null())
    return as_numpy(pc.equal(*columns))


FIELDS = {field.name: field for field in (*SCHEMA, *(pa.field(name, pa.bool_()) for name in DERIVED))}


def field(name: str) -> Any:
    """Return name and type of a column, one of `FIELDS` or else a score."""
    return FIELDS[name] if name in FIELDS else pa.field(name, pa.float64())


def is_text(name: str) -> bool:
    """Return whether a column holds texts, which stay Arrow arrays."""
    return field(name).type in (WORD, TEXT)


def as_numpy(column: Any) -> NDArray[Any]:
    """Return an Arrow column as a numpy array, copied where the layouts differ."""
    return np.asarray(column.to_numpy(zero_copy_only=False))


def as_column(name: str, column: Any) -> Any:
    """Return an Arrow array as rows hold it: texts as they are, numbers as numpy arrays."""
    return column if is_text(name) else as_numpy(column)
