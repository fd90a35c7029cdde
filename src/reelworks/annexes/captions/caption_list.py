"""Read and write a list of clips with their captions, as a dataset's `path` takes it.

The one that a run replaces is read first, so that no caption in it is lost.

Rows of lists keep their other columns. From CSV to CSV and from JSON lines to JSON lines they are copied as they stand, since
reading them as numbers, dates or truth values would change them (007, 1.10).
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from reelworks.annexes.captions.clips import CaptionClip, CaptionSource
from reelworks.annexes.captions.record import ClipKey
from reelworks.core import digests, files, user_files
from reelworks.core.errors import UserError
from reelworks.data.catalog.config import Source
from reelworks.data.catalog.scan import csv_lists, list_columns, list_tables, lists, remote
from reelworks.data.catalog.scan.list_columns import PATH
from reelworks.data.media import location, storages

_TEXT = "text"
Captions = Mapping[int, Sequence[str]]


def root_of(sources: Sequence[CaptionSource]) -> str:
    """Return the folder or address that contains the clips of all sources."""
    roots = sorted({clip.root for source in sources for clip in source.clips})
    if len(roots) == 1:
        return roots[0]
    if any(storages.is_url(root) for root in roots):
        raise UserError(
            "one list cannot hold clips of several addresses",
            code="list-of-several-addresses",
            field="list",
            value=roots[0],
            remedy="write a list for each",
        )
    return Path(os.path.commonpath(roots)).as_posix()


def digest(file: Path) -> str | None:
    """Return the digest by which a list that this program wrote is known again; None if there is no file.

    Raises:
        UserError: It is a folder, or cannot be read.
    """
    try:
        return digests.digest_bytes(user_files.read_bytes(file, user_files.LIST))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(
            f"no list can be written here ({error.strerror or error})",
            code="file-unwritable",
            field="list",
            value=str(file),
            remedy="name another file",
        ) from error


def with_its_captions(
    sources: Sequence[CaptionSource],
    file: Path,
    root: str | None,
    *,
    must_be_read: bool,
    answered: Collection[ClipKey] | None = None,
) -> list[CaptionSource]:
    """Return the sources whose clips have the captions of a list, where it has any for them.

    Args:
        root: Folder or address that its paths are relative to; None for its own.
        must_be_read: Whether it is an error that the file is no list.
        answered: Clips whose captions in the list are those of a captioner, so that others are corrected in the source;
            None if the list may have been corrected itself.
    """
    try:
        source = Source.from_path(file, root=root)
        found = lists.read(source)
    except UserError as error:
        if must_be_read and error.code != "no-media":  # its files have other names now
            raise
        return list(sources)
    texts = found.captions.to_pylist() if found.captions is not None else [None] * len(found.entries)
    of_clip = {
        (f"{source.address.rstrip('/')}/{entry.path}", entry.clip): text
        for entry, text in zip(found.entries, texts, strict=True)
        if text is not None
    }

    def caption(clip: CaptionClip) -> str | None:
        if answered is not None and clip.caption is not None and ClipKey.of_clip(clip) not in answered:
            return clip.caption
        return of_clip.get((f"{clip.root.rstrip('/')}/{clip.path}", clip.range), clip.caption)

    return [replace(one, clips=tuple(replace(clip, caption=caption(clip)) for clip in one.clips)) for one in sources]


def encode(file: Path, sources: Sequence[CaptionSource], captions: Captions) -> bytes:
    """Return the content of a list.

    Args:
        file: Where it will lie; its suffix is the format.
        captions: Captions of clips by their number among those of all sources; no caption for others.
    """
    texts = _texts(captions, sum(len(source.clips) for source in sources), as_lists=file.suffix != ".csv")
    root, parts, start = root_of(sources), list[_ListPart](), 0
    for source in sources:
        part = _ListPart.of_source(source, root, texts.slice(start, len(source.clips)), is_alone=len(sources) == 1)
        parts.append(part)
        start += len(source.clips)
    columns = list(dict.fromkeys(name for part in parts for name in part.table.column_names))
    if all(any(name in columns for name in pair) for pair in list_columns.RANGES):
        raise UserError(
            "one list cannot have ranges in frames and in seconds",
            code="ranges-given-twice",
            field="list",
            value=str(file),
            remedy="write a list for each",
        )
    if file.suffix == ".parquet":
        out = io.BytesIO()
        pa.parquet.write_table(pa.concat_tables([part.table for part in parts], promote_options="permissive"), out)
        return out.getvalue()
    if file.suffix != ".csv":  # numbers in one list and texts in another would be a list that nobody can read
        pa.unify_schemas([part.table.schema for part in parts], promote_options="permissive")
    rows = [row for part in parts for row in part.rows(file.suffix)]
    if file.suffix != ".csv":
        return "".join(f"{files.to_json(row)}\n" for row in rows).encode()
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def check(file: Path, sources: Sequence[CaptionSource]) -> None:
    """Refuse a list that could not be written when all captions are there."""
    try:
        encode(file, sources, {})
    except (TypeError, ValueError, csv.Error, pa.ArrowException) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"the columns of the list cannot be written in this format ({str(error).partition(chr(10))[0]})",
            code="list-suffix",
            field="list",
            value=str(file),
            remedy="give a name that ends in .parquet" if len(sources) == 1 else "write a list for each",
        ) from error


class _ListPart(NamedTuple):
    """Rows of one source.

    Attributes:
        source: The folder, list or catalog; equal rows of a list are one.
        is_plain: Whether the list has the form that this program writes.
        table: The rows with captions and paths of the new list.
        column: Name of the column of captions in `table`.
        former: Its name in the list, None for none.
    """

    source: CaptionSource
    is_plain: bool
    table: Any
    column: str
    former: str | None

    @classmethod
    def of_source(cls, source: CaptionSource, root: str, texts: Any, *, is_alone: bool) -> _ListPart:
        """Put captions into the columns of a list, or of clips; a list that is alone keeps their column's name."""
        paths = pa.array([_below(root, clip) for clip in source.clips], pa.large_string())
        if source.list_file is None:
            ranges = _ranges(source.clips) if any(clip.range for clip in source.clips) else {}
            return cls(source, False, pa.table({PATH: paths, **ranges, _TEXT: texts}), _TEXT, None)
        table, former, _, is_plain = list_tables.read(source.list_file)
        column = former if former is not None and is_alone else _TEXT
        table = table.rename_columns([column if name == former else name for name in table.column_names])
        if len(set(table.column_names)) < len(table.column_names):
            raise ValueError("two columns have one name")
        columns = dict(zip(table.column_names, table.filter(source.kept).columns, strict=True))
        table = pa.table(columns | {PATH: paths, column: texts})
        return cls(source, is_plain, table, column, former)

    def rows(self, suffix: str) -> list[dict[str, Any]]:
        """Return the rows without what they lack, for a list of some format; those of the same are as they stand there."""
        given, kept = self.source.list_file, self.source.kept
        if given is None or not self.is_plain or given.suffix.lower() != suffix:
            table = self.table
            if suffix == ".csv":
                names = table.column_names
                stand = [] if given is None else list_tables.texts(given).filter(kept).columns
                columns = dict(zip(names, table.columns, strict=True)) | dict(zip(names, stand, strict=False))
                columns |= {name: table.column(name) for name in (PATH, self.column)}
                table = pa.table({name: column.cast(pa.large_string()) for name, column in columns.items()})
            return [_without_none(row) for row in table.to_pylist()]
        with location.local(remote.current(given)) as here:
            file = Path(str(here))
            if suffix == ".csv":
                with file.open(encoding="utf-8-sig", newline="") as lines:
                    read = csv_lists.of_any_length(csv.reader(lines))
                    rows = [dict(zip(self.table.column_names, cells, strict=False)) for cells in read if cells][1:]
            else:
                try:
                    with file.open(encoding="utf-8-sig") as lines:
                        rows = _renamed([json.loads(line) for line in lines if line.strip()], self.former, self.column)
                except json.JSONDecodeError:  # objects of several lines, or several in one
                    return [_without_none(row) for row in self.table.to_pylist()]
        pairs = zip(compress(rows, kept), self.table.select([PATH, self.column]).to_pylist(), strict=True)
        return [{n: v for n, v in (row | new).items() if v is not None or n not in new} for row, new in pairs]


def _renamed(rows: list[dict[str, Any]], former: str | None, column: str) -> list[dict[str, Any]]:
    """Return rows of JSON with stripped names, and with those of the new list for paths and captions."""
    known = list(dict.fromkeys(name for row in rows for name in row))
    names = {
        name: column if new == former else new for name, new in zip(known, list_columns.renamed(known), strict=True)
    }
    return [{names[name]: value for name, value in row.items()} for row in rows]


def _without_none(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}


def _texts(captions: Captions, count: int, *, as_lists: bool) -> Any:
    """Return a column with the captions of each clip: a list if any has several, or else lines, in CSV."""
    if as_lists and any(len(texts) > 1 for texts in captions.values()):
        values = [list(captions[i]) if i in captions else None for i in range(count)]
        return pa.array(values, pa.list_(pa.large_string()))
    return pa.array(["\n".join(captions[i]) if i in captions else None for i in range(count)], pa.large_string())


def _below(root: str, clip: CaptionClip) -> str:
    prefix = Path(os.path.relpath(clip.root, root)).as_posix() if root != clip.root else "."
    return clip.path if prefix == "." else f"{prefix}/{clip.path}"


def _ranges(clips: Sequence[CaptionClip]) -> dict[str, Any]:
    """Return the columns of ranges, which catalogs have in frames."""
    bounds = np.array(
        [[float(number) if number else np.nan for number in (clip.range or ":").split(":")] for clip in clips]
    )
    return {
        name: pa.array(bounds[:, i], pa.float64(), from_pandas=True).cast(pa.int64())
        for i, name in enumerate(list_columns.RANGES[0])
    }
