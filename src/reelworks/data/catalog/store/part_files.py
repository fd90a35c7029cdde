"""Read the Parquet files of a catalog, each column when it is used, one row group at a time.

A file stays open while its columns may be read, so that it can be removed meanwhile, as `catalog compact` does.
Small files are read at once instead: a catalog may have many.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from reelworks.core.errors import UserError
from reelworks.data.catalog.store import integrity
from reelworks.data.catalog.store.column_files import ColumnFiles
from reelworks.data.catalog.store.rows import DERIVED, SCHEMA, SCORE, CatalogRows, Wanted, as_column, as_numpy, derive

_SMALL_ROWS = 1 << 14  # rows that take about 10 MB
_SCORE_TYPE = pa.float64()


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
    _readable: dict[int, NDArray[np.bool_]] = field(default_factory=dict, compare=False, repr=False)
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
        try:
            source = pa.OSFile(str(path))
            file = pq.ParquetFile(source, page_checksum_verification=True)
            integrity.require_columns(file.schema_arrow.names, SCHEMA)
            table = None
            if file.metadata.num_rows < _SMALL_ROWS:  # its columns are checked below, with their values
                table = file.read(use_threads=False)
                source.close()
            else:
                integrity.conform(file.schema_arrow.empty_table(), SCHEMA, first)
        except integrity.ColumnError as error:
            raise integrity.damaged(path.parent, f"{path.name} {error}") from error
        except (OSError, ValueError, pa.ArrowException) as error:
            raise unreadable(path, error) from error
        if file.metadata.num_rows != num_rows:
            problem = f"{path.name} has {file.metadata.num_rows} rows instead of {num_rows}"
            raise integrity.damaged(path.parent, problem)
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
        values = self._values(name, group, first)
        self._refuse_wrong(name, values, group, first)
        return values

    def _values(self, name: str, group: int, first: int) -> Any:
        length = self.group_lengths[group]
        if name in DERIVED:
            if name not in self.columns:
                return derive(name, *(self._values(n, group, first) for n in DERIVED[name]))
            return as_numpy(self._read(name, group).column(0).combine_chunks())
        if name not in self.columns:  # a score that the list had only later
            return np.full(length, np.nan)
        schema = pa.schema([SCHEMA.field(name) if name in SCHEMA.names else pa.field(name, _SCORE_TYPE)])
        try:
            column = integrity.conform(self._read(name, group), schema, first).column(0)
        except integrity.ColumnError as error:
            raise integrity.damaged(self.path.parent, f"{self.path.name} {error}") from error
        except (OSError, ValueError, pa.ArrowException) as error:
            raise unreadable(self.path, error) from error
        return as_column(name, column.combine_chunks())

    def _read(self, name: str, group: int) -> Any:
        if self.table is not None:
            return self.table.select([name])
        # A reader of its own for each thread, since they may read columns at the same time.
        if not hasattr(self._of_thread, "reader"):
            options = {"metadata": self.metadata, "page_checksum_verification": True}
            self._of_thread.reader = pq.ParquetFile(self.source, **options)
        return self._of_thread.reader.read_row_group(group, columns=[name])

    def _refuse_wrong(self, name: str, values: Any, group: int, first: int) -> None:
        def readable() -> NDArray[np.bool_]:
            if group not in self._readable:  # asked for once for each measure
                self._readable[group] = self._values("readable", group, first)
            return self._readable[group]

        wrong = integrity.wrong(name, values, readable)
        if wrong is not None and wrong.any():
            at = int(np.argmax(wrong))
            path = self._values("path", group, first)[at].as_py()
            problem = f"row {first + at} ({path!r}) has {name.removeprefix(SCORE)} = {values[at]}"
            raise integrity.damaged(self.path.parent, problem)


def unreadable(path: Path, error: BaseException) -> UserError:
    """Return the error for a file that is missing or cannot be decoded."""
    return integrity.damaged(path.parent, f"{path.name} cannot be read: {error}")


@dataclass(frozen=True)
class Stored:
    """The rows of a catalog's files.

    Attributes:
        alive: Mask of the rows to show; None shows all.
    """

    files: tuple[PartFile, ...]
    alive: NDArray[np.bool_] | None = None

    def rows(self, kept: ColumnFiles | None = None) -> CatalogRows:
        """Return the rows, whose columns are read when they are used, or mapped if there are files for them."""
        count = sum(file.num_rows for file in self.files) if self.alive is None else int(self.alive.sum())
        scores = dict.fromkeys(name.removeprefix(SCORE) for file in self.files for name in file.scores)
        return CatalogRows(count, self._chunks, scores, kept)

    def tables(self) -> Iterator[Any]:
        """Yield the rows as tables of all columns, those of `DERIVED` included, a row group of a file at a time."""
        scores = list(dict.fromkeys(name for file in self.files for name in file.scores))
        masks = [pa.field(name, pa.bool_()) for name in DERIVED]
        schema = pa.schema([*SCHEMA, *masks, *(pa.field(name, _SCORE_TYPE) for name in scores)])
        for file, group, where in self._groups():
            columns = [file.read(name, group, where.start) for name in schema.names]
            if len(columns[0]):
                shown = columns if self.alive is None else [_shown(column, self.alive[where]) for column in columns]
                arrays = [pa.array(c, type=f.type, from_pandas=f.nullable) for c, f in zip(shown, schema, strict=True)]
                yield pa.table(arrays, schema=schema)

    def _groups(self) -> Iterator[tuple[PartFile, int, slice]]:
        """Yield each row group of a file, with the numbers of its rows among those of all files."""
        for file in self.files:
            first = file.first
            for group, length in enumerate(file.group_lengths):
                yield file, group, slice(first, first + length)
                first += length

    def _chunks(self, name: str, wanted: Wanted) -> Iterator[Any]:
        chunks = self._read(name, wanted)
        return chunks if sum(file.num_rows for file in self.files) < _SMALL_ROWS else prefetch_one(chunks)

    def _read(self, name: str, wanted: Wanted) -> Iterator[Any]:
        first = 0
        for file, group, where in self._groups():
            length = where.stop - where.start if self.alive is None else int(self.alive[where].sum())
            if wanted is not None and np.equal(*np.searchsorted(wanted, [first, first + length])):
                yield length
            else:
                values = file.read(name, group, where.start)
                yield values if self.alive is None else _shown(values, self.alive[where])
            first += length


def _shown(values: Any, alive: NDArray[np.bool_]) -> Any:
    if alive.all():
        return values
    return values[alive] if isinstance(values, np.ndarray) else values.filter(pa.array(alive))


def prefetch_one(items: Iterator[Any]) -> Iterator[Any]:
    """Yield items, of which the next one is computed in a thread meanwhile."""
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(next, items, None)
        while (item := waiting.result()) is not None:
            waiting = thread.submit(next, items, None)
            yield item
