"""The files of a catalog: `catalog.json`, the list of its parts, and the Parquet files that it names.

A Parquet file of rows stays open while its columns may be read, so that it can be removed meanwhile, as `catalog compact` does.
Small ones are read at once instead: a catalog may have many.
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from reelworks.core import digests, files, user_files
from reelworks.core.arrays import Mask
from reelworks.core.errors import UserError
from reelworks.data.catalog.store import integrity, schema
from reelworks.data.catalog.store.schema import DERIVED, SCHEMA, SCORE

FORMAT_VERSION = 3
SMALL_ROWS = 1 << 14  # rows that take about 10 MB
_GROUP_ROWS = 1 << 17  # rows that are read at once to show a few of them
_HARDLY_REPEATS = {"ordinal", "uid", "path", "size_bytes", "mtime_ns", "fingerprint", "group"}


@dataclass(frozen=True)
class Part:
    """Rows that one scan added."""

    rows: int
    retired: int  # rows of earlier parts
    time: float  # of the scan, in seconds since 1970
    # The folders scanned, each with "name", "root", "scores", the names of the scores of its list, and "reader", the version
    # of the measures of videos.
    sources: list[dict[str, str]]

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Part:
        """Read an entry of `catalog.json`; an invalid one raises KeyError, TypeError, ValueError or OverflowError."""
        rows, retired = int(value["rows"]), int(value["retired"])
        if min(rows, retired) < 0:
            raise ValueError(f"a part has {rows} rows and retires {retired}")
        return cls(rows, retired, float(value["time"]), list(value["sources"]))


def part_name(index: int) -> str:
    """Return the name of the file with the rows of a part."""
    return f"part-{index:06d}.parquet"


def retired_name(index: int) -> str:
    """Return the name of the file with the rows that a part retires."""
    return f"retired-{index:06d}.parquet"


def compact_name(version: int) -> str:
    """Return the name of the file with the live rows of a compacted version."""
    return f"compact-{version:06d}.parquet"


def gone_name(version: int) -> str:
    """Return the name of the file with ordinal and uid of the rows that a compaction dropped."""
    return f"compact-{version:06d}-retired.parquet"


def identity(parts: Sequence[Part]) -> str:
    """Return a digest of the version of a catalog that has these parts."""
    return digests.digest_json([asdict(part) for part in parts])


def write_list(path: Path, parts: Sequence[Part], compacted: int) -> None:
    """Write the list of the parts of a catalog, of which so many were compacted, into its folder."""
    stored = {"format": FORMAT_VERSION, "compacted": compacted, "parts": [asdict(part) for part in parts]}
    files.write_json(path / "catalog.json", stored)


def read_list(path: Path) -> tuple[tuple[Part, ...], int]:
    """Read the parts of the catalog in a folder, and how many of them were compacted.

    Raises:
        UserError: The list is damaged, or has the format of another version of Reelworks.
    """
    try:
        stored = user_files.read_json(path / "catalog.json")
        newer = stored["format"] > FORMAT_VERSION
        parts = () if newer else tuple(Part.from_json(part) for part in stored["parts"])
        compacted = 0 if newer else int(stored.get("compacted", 0))  # format 1 has no compaction
        if not 0 <= compacted <= len(parts):
            raise ValueError(f"{compacted} of {len(parts)} parts are compacted")
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise integrity.damaged(path, f"catalog.json cannot be read: {error}") from error
    if stored["format"] < FORMAT_VERSION:
        raise UserError(
            f"the catalog has format {stored['format']}, which lacks measures that this version reads",
            code="catalog-too-old",
            field="catalog",
            value=str(path),
            remedy="delete the folder and scan again: reelworks scan DIR -o CATALOG",
        )
    if newer:
        raise UserError(
            f"the catalog has format {stored['format']}, this version reads up to {FORMAT_VERSION}",
            code="catalog-too-new",
            field="catalog",
            value=str(path),
            remedy="update Reelworks",
        )
    return parts, compacted


@dataclass(frozen=True)
class PartFile:
    """An open Parquet file of rows.

    Attributes:
        first: Number of its first row among those of all files.
        columns: Names of its columns.
        table: All of a small file; of others None.
    """

    path: Path
    first: int
    source: Any
    metadata: Any
    columns: frozenset[str]
    table: Any = None
    _readable: dict[int, Mask] = field(default_factory=dict, compare=False, repr=False)
    _of_thread: threading.local = field(default_factory=threading.local, compare=False, repr=False)

    @classmethod
    def open(cls, path: Path, num_rows: int, first: int) -> PartFile:
        """Open a file that must have so many rows and every column of `SCHEMA`.

        Raises:
            FileNotFoundError: It does not exist.
            UserError: It is damaged.
        """
        if not path.exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        with _read_from(path):
            source, table = pa.OSFile(str(path)), None
            file = pq.ParquetFile(source, page_checksum_verification=True)
            integrity.require_columns(file.schema_arrow.names, SCHEMA)
            if file.metadata.num_rows < SMALL_ROWS:  # its columns are checked below, with their values
                table = file.read(use_threads=False)
                source.close()
            else:
                integrity.conform(file.schema_arrow.empty_table(), SCHEMA, first)
        _require_rows(path, file.metadata.num_rows, num_rows)
        opened = cls(path, first, source, file.metadata, frozenset(file.schema_arrow.names), table)
        if table is not None:
            for name in (*SCHEMA.names, *opened.scores):
                opened.read(name, 0, first)
        return opened

    @property
    def num_rows(self) -> int:
        """Number of rows of the file."""
        return int(self.metadata.num_rows)

    @property
    def scores(self) -> list[str]:
        """Names of the columns with scores, sorted, with their prefix."""
        return sorted(name for name in self.columns if name.startswith(SCORE))

    @property
    def group_lengths(self) -> list[int]:
        """Number of rows of each row group; a small file is read as one."""
        if self.table is not None:
            return [self.num_rows]
        return [self.metadata.row_group(group).num_rows for group in range(self.metadata.num_row_groups)]

    def read(self, name: str, group: int, first: int) -> Any:
        """Read a column of a row group as `CatalogRows` has it, checked; `first` is the number of its first row.

        Raises:
            UserError: The column is damaged.
        """

        def readable() -> Mask:
            if group not in self._readable:  # asked for once for each measure
                self._readable[group] = self._values("readable", group, first)
            return self._readable[group]

        values = self._values(name, group, first)
        wrong = integrity.wrong(name, values, readable)
        if wrong is not None and wrong.any():
            at = int(np.argmax(wrong))
            path = self._values("path", group, first)[at].as_py()
            problem = f"row {first + at} ({path!r}) has {name.removeprefix(SCORE)} = {values[at]}"
            raise integrity.damaged(self.path.parent, problem)
        return values

    def _values(self, name: str, group: int, first: int) -> Any:
        if name in self.columns:
            with _read_from(self.path):
                column = integrity.conform(self._stored(name, group), pa.schema([schema.field(name)]), first).column(0)
            return schema.as_column(name, column.combine_chunks())
        if name in DERIVED:
            return schema.derive(name, *(self._values(n, group, first) for n in DERIVED[name]))
        return np.full(self.group_lengths[group], np.nan)  # a score that the list had only later

    def _stored(self, name: str, group: int) -> Any:
        if self.table is not None:
            return self.table.select([name])
        # A reader of its own for each thread, since they may read columns at the same time.
        if not hasattr(self._of_thread, "reader"):
            options = {"metadata": self.metadata, "page_checksum_verification": True}
            self._of_thread.reader = pq.ParquetFile(self.source, **options)
        return self._of_thread.reader.read_row_group(group, columns=[name])


@contextmanager
def _read_from(file: Path) -> Iterator[None]:
    """Tell what is wrong with a file that is read as damage of its catalog."""
    try:
        yield
    except integrity.ColumnError as error:
        raise integrity.damaged(file.parent, f"{file.name} {error}") from error
    except (OSError, ValueError, pa.ArrowException) as error:
        raise unreadable(file, error) from error


def unreadable(path: Path, error: BaseException) -> UserError:
    """Return the error for a file that is missing or cannot be decoded."""
    return integrity.damaged(path.parent, f"{path.name} cannot be read: {error}")


def _require_rows(file: Path, has: int, wanted: int) -> None:
    if has != wanted:
        raise integrity.damaged(file.parent, f"{file.name} has {has} rows instead of {wanted}")


def read_table(file: Path, kind: Any, num_rows: int) -> pa.Table:
    """Read a Parquet file that must have so many rows of a schema.

    Raises:
        UserError: It is missing or damaged.
    """
    with _read_from(file):
        with pa.OSFile(str(file)) as source:
            table = pq.ParquetFile(source, page_checksum_verification=True).read()
        table = integrity.conform(table, kind, 0)
    _require_rows(file, len(table), num_rows)
    return table


def write_tables(file: Path, tables: Iterator[pa.Table]) -> None:
    """Write consecutive tables as a Parquet file, and flush it to disk; without a table no file is written."""
    waiting = list(itertools.islice(tables, 1))
    if not waiting:
        return
    kind = waiting[0].schema
    # What hardly ever repeats takes less time and space without a dictionary.
    options = {
        "compression": {name: "lz4" if name.startswith(SCORE) else "zstd" for name in kind.names},
        "use_dictionary": [name for name in kind.names if not name.startswith(SCORE) and name not in _HARDLY_REPEATS],
    }
    file.unlink(missing_ok=True)  # a run may have a hard link to the former file, which must not be overwritten
    with file.open("wb") as f:
        with pq.ParquetWriter(f, kind, write_page_checksum=True, **options) as writer:
            for table in tables:
                if sum(map(len, waiting)) >= _GROUP_ROWS:
                    writer.write_table(pa.concat_tables(waiting), row_group_size=_GROUP_ROWS)
                    waiting.clear()
                waiting.append(table)
            writer.write_table(pa.concat_tables(waiting), row_group_size=_GROUP_ROWS)
        f.flush()
        os.fsync(f.fileno())
