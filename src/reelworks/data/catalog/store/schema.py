"""The columns of a catalog: their types, the masks that files of rows have too, and Arrow columns as numpy arrays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelworks.core import optional_imports
from reelworks.core.arrays import F64, I64, U64, Mask

WORD = pa.dictionary(pa.int32(), pa.string())
TEXT = pa.large_string()  # captions of millions of clips exceed the 2 GB that `string` can address
SCORE = "score:"  # prefix of score columns, so that a score cannot replace a measure

Words: TypeAlias = pa.Array  # dictionary-encoded, as they repeat
Texts: TypeAlias = pa.Array
TextsOrNulls: TypeAlias = pa.Array

optional_imports.settle_arrow()


class CatalogColumns:
    """The columns that all rows have; the measures, `num_frames` to `sound`, are those of `probe.Probe`."""

    ordinal: I64  # permanent number of the row
    uid: U64  # identity of the clip, from dataset and path
    dataset: Words
    root: Words  # absolute path or address of the dataset's folder
    path: Texts  # below `root`, with forward slashes; of a member of an archive, below the archive's path
    start: I64  # first byte of a member of an archive; -1 for a file of its own
    kind: Words
    size_bytes: I64
    mtime_ns: I64  # time of the file's last change, used only to avoid reading unchanged files again
    fingerprint: Texts  # digest of the content; "" if the file could not be read
    num_frames: I64
    height: I64
    width: I64
    fps: F64
    duration_seconds: F64
    codec: Words
    pixel_format: Words
    bit_depth: I64
    rotation: I64
    variable_fps: Mask
    has_alpha: Mask
    mirrored: Mask
    pixel_aspect_ratio: F64
    hidden_frames: I64
    interlaced: Mask
    color_matrix: Words
    full_range: Mask
    hdr: Words
    icc_profile: Words
    sound: Words
    caption: TextsOrNulls  # null if there is no caption file or the list has none, "" if the file is empty
    group: Texts  # path of the source file; clips of one group are held out together
    first_frame: I64  # number in its file of the first of the clip's `num_frames` frames
    cut: Words  # how the clip was cut from its file: "list", or the setting of a `Source`; "" for a whole file
    error: TextsOrNulls  # why the file cannot be trained on, in which case all measures are 0; null for a good file


_NUMBERS = {"I64": pa.int64(), "U64": pa.uint64(), "F64": pa.float64(), "Mask": pa.bool_()}
_TYPES = _NUMBERS | {"Words": WORD, "Texts": TEXT, "TextsOrNulls": TEXT}
_COLUMNS = CatalogColumns.__annotations__.items()
SCHEMA = pa.schema([pa.field(name, _TYPES[kind], nullable=kind == "TextsOrNulls") for name, kind in _COLUMNS])


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
