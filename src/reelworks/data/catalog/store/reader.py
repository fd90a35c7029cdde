"""Read the rows of one version of a catalog, each column when it is used, one row group at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reelworks.core import digests, files
from reelworks.core.arrays import I64, Mask
from reelworks.core.errors import UserError
from reelworks.data.catalog.store import column_files, integrity, part_files, schema
from reelworks.data.catalog.store.column_files import ColumnFiles
from reelworks.data.catalog.store.part_files import Part, PartFile
from reelworks.data.catalog.store.rows import CatalogRows, Wanted
from reelworks.data.catalog.store.schema import DERIVED, SCHEMA, SCORE

_KEEP_DIGEST_FROM_ROWS = 1 << 18
_DIGEST = "digest-{:06d}.json"
_ORDINAL = pa.field("ordinal", pa.int64(), nullable=False)
RETIRED_SCHEMA = pa.schema([_ORDINAL])
TOMBSTONES_SCHEMA = pa.schema([_ORDINAL, SCHEMA.field("uid")])


class CatalogReader:
    """The open files of one version of a catalog, and what was read of them.

    Attributes:
        compacted: Number of the first parts that one file has: more than when the catalog was opened, if it was compacted
            before its files were.
    """

    def __init__(self, path: Path, parts: tuple[Part, ...], compacted: int) -> None:
        """Open the files.

        Raises:
            UserError: A file is missing or damaged, or the version was compacted away.
        """
        self.path, self.parts, self.compacted = path, parts, compacted
        self.num_rows = sum(part.rows for part in parts)
        self.num_live = self.num_rows - sum(part.retired for part in parts)
        self._files = self._opened()
        self._stored_rows = sum(file.num_rows for file in self._files)

    def _opened(self) -> tuple[PartFile, ...]:
        try:
            opened: list[PartFile] = []
            for name, rows in self._names():
                if rows:
                    first = opened[-1].first + opened[-1].num_rows if opened else 0
                    opened.append(PartFile.open(self.path / name, rows, first))
            return tuple(opened)
        except FileNotFoundError as error:
            _, compacted = part_files.read_list(self.path)
            if compacted == self.compacted:
                raise part_files.unreadable(Path(error.filename), error) from error
            if compacted > len(self.parts):
                raise too_old(self.path, len(self.parts), compacted) from error
            self.compacted = compacted  # the same version, in other files now
            return self._opened()

    def _names(self) -> list[tuple[str, int]]:
        """List the files of rows with their numbers of rows, the one of compacted parts first."""
        parts = [(part_files.part_name(i), part.rows) for i, part in enumerate(self.parts)][self.compacted :]
        before = self.parts[: self.compacted]
        live = sum(part.rows - part.retired for part in before)
        return [(part_files.compact_name(self.compacted), live), *parts] if before else parts

    @cached_property
    def all_rows(self) -> CatalogRows:
        """Rows that the files have, by ordinal, retired ones included."""
        return self._rows()

    @cached_property
    def live(self) -> CatalogRows:
        """Rows that are valid, by ordinal, one for each clip; they are checked when they are first asked for."""
        kept = self._column_files if self.num_live >= column_files.FROM_ROWS else None
        # Processes that map the columns do not repeat the checks.
        mapped = None if kept is None else kept.get("alive", lambda: iter([self._alive(self._rows())]), np.bool_)
        if mapped is not None:
            return self._rows(mapped, kept)
        rows = self.all_rows
        alive = self._alive(rows)
        if alive.all():
            return rows
        live = self._rows(alive)
        vars(live).update(ordinal=rows.ordinal[alive], uid=rows.uid[alive])  # not read again
        vars(rows).pop("uid", None)
        return live

    def _alive(self, rows: CatalogRows) -> Mask:
        """Return which of all rows are live; refuse wrong ordinals, and clips with several live rows."""
        rows.load("ordinal", "uid")
        self._check_ordinals(rows)
        alive = np.ones(len(rows), dtype=np.bool_)
        first = sum(part.rows for part in self.parts[: self.compacted])
        for i, part in enumerate(self.parts[self.compacted :], self.compacted):
            if part.retired:
                table = part_files.read_table(self.path / part_files.retired_name(i), RETIRED_SCHEMA, part.retired)
                retired = table.column("ordinal").to_numpy()
                index = np.minimum(np.searchsorted(rows.ordinal, retired), len(rows) - 1)
                if retired.min() < 0 or retired.max() >= first or (rows.ordinal[index] != retired).any():
                    problem = f"a part retires a row that is not among the {first} rows before it"
                    raise integrity.damaged(self.path, problem)
                alive[index] = False
            first += part.rows
        integrity.check_one_row_per_uid(rows, alive, self.path)
        return alive

    def _check_ordinals(self, rows: CatalogRows) -> None:
        """Refuse ordinals other than 0, 1, 2, …; before the compacted version they are ascending, with gaps."""
        ordinal = rows.ordinal
        first = sum(part.rows for part in self.parts[: self.compacted])
        compact = self._names()[0][1] if self.compacted else 0
        before = ordinal[:compact]
        wrong = np.zeros(len(ordinal), dtype=np.bool_)
        wrong[compact:] = ordinal[compact:] != np.arange(first, first + len(ordinal) - compact)
        wrong[:compact] = (np.diff(before, prepend=-1) <= 0) | (before >= first)
        if wrong.any():
            at = int(np.argmax(wrong))
            raise integrity.damaged(self.path, f"row {at} ({rows.path[at].as_py()!r}) has ordinal = {ordinal[at]}")

    @cached_property
    def index_of_ordinal(self) -> I64:
        """Indices into all rows by ordinal, -1 for rows that were compacted away."""
        index = np.full(self.num_rows, -1, dtype=np.int64)
        index[self.all_rows.ordinal] = np.arange(len(self.all_rows))
        return index

    @cached_property
    def _column_files(self) -> ColumnFiles | None:
        return ColumnFiles.open(self.path / f"columns-{len(self.parts):06d}-{part_files.identity(self.parts)[:8]}")

    def identity_of(self, rows: CatalogRows) -> str:
        """Return a digest that tells some of the live rows from those of another version, without reading them."""
        # Of all live rows, the ordinals follow from the parts.
        which = "live" if len(rows) == self.num_live else digests.digest_arrays(ordinal=rows.ordinal)
        return digests.digest_json([part_files.identity(self.parts), which])

    def digest_of(self, rows: CatalogRows) -> str:
        """Return the digest of some of the live rows; it is kept in the folder if it took long to compute."""
        if len(rows) < _KEEP_DIGEST_FROM_ROWS:
            return rows.digest()
        try:
            stats = [(self.path / name).stat() for name, _ in self._names()]
        except OSError:  # merged or removed since they were opened
            return rows.digest()
        key = digests.digest_json([self.identity_of(rows), [[stat.st_size, stat.st_mtime_ns] for stat in stats]])
        columns = self._column_files if len(rows) >= column_files.FROM_ROWS else None
        kept = self.path / _DIGEST.format(len(self.parts))
        with nullcontext() if columns is None else columns.lock("digest"):  # one of many processes computes it
            with suppress(OSError, ValueError, AttributeError):
                if (known := json.loads(kept.read_text(encoding="utf-8")).get(key)) is not None:
                    return str(known)
            digest = rows.digest()
            with suppress(OSError):  # the folder may be read-only
                files.write_json(kept, {key: digest})
            return digest

    def tables(self, alive: Mask) -> Iterator[Any]:
        """Yield some of all rows as tables of all columns, those of `DERIVED` included, a row group of a file at a time.

        The next one is read meanwhile.
        """
        return prefetch_one(self._tables(alive))

    def _tables(self, alive: Mask) -> Iterator[Any]:
        names = [*SCHEMA.names, *DERIVED, *(SCORE + name for name in self._scores())]
        kind = pa.schema([schema.field(name) for name in names])
        for file, group, where in self._groups():
            columns = [_shown(file.read(name, group, where.start), alive[where]) for name in names]
            arrays = [pa.array(c, type=f.type, from_pandas=f.nullable) for c, f in zip(columns, kind, strict=True)]
            yield pa.table(arrays, schema=kind)

    def _rows(self, alive: Mask | None = None, kept: ColumnFiles | None = None) -> CatalogRows:
        """Return all rows, or those of a mask, whose columns are read when they are used, or mapped if there are files."""
        count = self._stored_rows if alive is None else int(alive.sum())
        return CatalogRows(count, partial(self._chunks, alive), self._scores(), kept)

    def _scores(self) -> list[str]:
        return list(dict.fromkeys(name.removeprefix(SCORE) for file in self._files for name in file.scores))

    def _groups(self) -> Iterator[tuple[PartFile, int, slice]]:
        """Yield each row group of a file, with the numbers of its rows among those of all files."""
        for file in self._files:
            first = file.first
            for group, length in enumerate(file.group_lengths):
                yield file, group, slice(first, first + length)
                first += length

    def _chunks(self, alive: Mask | None, name: str, wanted: Wanted) -> Iterator[Any]:
        chunks = self._read(alive, name, wanted)
        return chunks if self._stored_rows < part_files.SMALL_ROWS else prefetch_one(chunks)

    def _read(self, alive: Mask | None, name: str, wanted: Wanted) -> Iterator[Any]:
        first = 0
        for file, group, where in self._groups():
            length = where.stop - where.start if alive is None else int(alive[where].sum())
            if wanted is not None and np.equal(*np.searchsorted(wanted, [first, first + length])):
                yield length
            else:
                values = file.read(name, group, where.start)
                yield values if alive is None else _shown(values, alive[where])
            first += length


def tombstones(path: Path, parts: tuple[Part, ...], compacted: int) -> pa.Table:
    """Return ordinal and uid of the rows that were compacted away.

    Raises:
        UserError: Their file is missing or damaged.
    """
    gone = sum(part.retired for part in parts[:compacted])
    if not gone:
        return TOMBSTONES_SCHEMA.empty_table()
    file = path / part_files.gone_name(compacted)
    if not file.exists():
        newest, now_compacted = part_files.read_list(path)
        if now_compacted > compacted:
            later = tombstones(path, newest, now_compacted)  # has these rows too
            return later.filter(pc.less(later.column("ordinal"), sum(part.rows for part in parts)))
    return part_files.read_table(file, TOMBSTONES_SCHEMA, gone)


def _shown(values: Any, alive: Mask) -> Any:
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


def too_old(path: Path, version: int, compacted: int) -> UserError:
    """Return the error for a version that was compacted away."""
    return UserError(
        f"the catalog {path} was compacted at version {compacted}, and earlier versions can no longer be opened",
        code="catalog-version-compacted",
        field="version",
        value=version,
        remedy=f"open version {compacted} or a later one; runs keep copies of the versions that they trained on",
    )
