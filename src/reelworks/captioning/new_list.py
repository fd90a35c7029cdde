"""Write a list of clips with their captions, as a dataset's `path` takes it."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from reelworks.captioning.clips import CaptionClip, CaptionSource
from reelworks.catalog import lists, location
from reelworks.core import files
from reelworks.core.errors import UserError


def root_of(sources: Sequence[CaptionSource]) -> str:
    """Return the folder or address that contains the clips of all sources."""
    roots = sorted({clip.root for source in sources for clip in source.clips})
    if len(roots) == 1:
        return roots[0]
    if any(location.is_url(root) for root in roots):
        raise UserError(
            "one list cannot hold clips of several addresses",
            code="list-of-several-addresses",
            field="list",
            value=roots[0],
            remedy="write a list for each",
        )
    return os.path.commonpath(roots)


def encode(file: Path, sources: Sequence[CaptionSource], captions: Mapping[int, Sequence[str]]) -> bytes:
    """Return the content of a list.

    Args:
        file: Where it will lie; its suffix is the format.
        captions: Captions of clips by their number among those of all sources; no caption for others.
    """
    table = _table(sources, file, captions, as_lists=file.suffix != ".csv")
    out = io.BytesIO()
    if file.suffix == ".parquet":
        pa.parquet.write_table(table, out)
    elif file.suffix == ".csv":
        pa.csv.write_csv(table, out)
    else:
        for row in table.to_pylist():
            out.write((files.to_json({key: value for key, value in row.items() if value is not None}) + "\n").encode())
    return out.getvalue()


def check(file: Path, sources: Sequence[CaptionSource]) -> None:
    """Refuse a list that could not be written when all captions are there."""
    try:
        encode(file, sources, {})
    except (TypeError, ValueError, pa.ArrowException) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"the columns of the list cannot be written in this format ({str(error).partition(chr(10))[0]})",
            code="list-suffix",
            field="list",
            value=str(file),
            remedy="give a name that ends in .parquet",
        ) from error


def _table(
    sources: Sequence[CaptionSource], file: Path, captions: Mapping[int, Sequence[str]], *, as_lists: bool
) -> pa.Table:
    texts = _texts(captions, sum(len(source.clips) for source in sources), as_lists)
    if len(sources) == 1 and sources[0].list_file is not None:
        return _of_list(sources[0], sources[0].list_file, file, texts)
    root, clips = root_of(sources), [clip for source in sources for clip in source.clips]
    columns = {"path": pa.array([_below(root, clip) for clip in clips], pa.large_string())}
    if any(clip.range for clip in clips):
        columns |= _ranges(clips)
    return pa.table(columns | {"text": texts})


def _of_list(source: CaptionSource, list_file: location.MediaPath, file: Path, texts: pa.Array) -> pa.Table:
    """Return a list as it is, with other captions; paths become relative to the folder of its clips if it moves."""
    table = lists.read_table(list_file)
    name = next((name for name in lists.CAPTIONS if name in table.column_names), None)
    if name is None:
        table = table.append_column("text", texts)
    else:
        table = table.set_column(table.column_names.index(name), name, texts)
    paths = pa.array([clip.path for clip in source.clips], pa.large_string())
    return table.set_column(table.column_names.index(lists.PATH), lists.PATH, paths)


def _texts(captions: Mapping[int, Sequence[str]], count: int, as_lists: bool) -> pa.Array:
    """Return a column with the captions of each clip: a list if any has several, or else lines, in CSV."""
    if as_lists and any(len(texts) > 1 for texts in captions.values()):
        values: list[Any] = [list(captions[i]) if i in captions else None for i in range(count)]
        return pa.array(values, pa.list_(pa.large_string()))
    return pa.array(["\n".join(captions[i]) if i in captions else None for i in range(count)], pa.large_string())


def _below(root: str, clip: CaptionClip) -> str:
    prefix = os.path.relpath(clip.root, root) if root != clip.root else "."
    return clip.path if prefix == "." else f"{prefix}/{clip.path}"


def _ranges(clips: Sequence[CaptionClip]) -> dict[str, pa.Array]:
    bounds = np.array(
        [[float(number) if number else np.nan for number in (clip.range or ":").split(":")] for clip in clips]
    )
    return {
        name: pa.array(bounds[:, i], pa.float64(), from_pandas=True).cast(pa.int64())
        for i, name in enumerate(("start_frame", "end_frame"))
    }
