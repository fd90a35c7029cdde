"""Read and write the folder of a catalog: Parquet parts, which are only ever added.

    catalog.json                    format, `compacted`, and one entry for each part: rows, retired, time, sources
    part-000000.parquet             rows that a scan appended, sorted by uid, or those with new scores, by their former ordinals
    retired-000000.parquet          ordinals of former rows that the same scan retired
    compact-000012.parquet          in place of the first 12 parts: the rows that were live in version 12
    compact-000012-retired.parquet  ordinal and uid of all other rows of these parts

The number of parts is the catalog's version; an earlier version is its first parts. Ordinals are permanent: after
`compact` rows keep theirs, and only versions before the compacted one can no longer be opened. Files are flushed to
disk before `catalog.json` names them, so that a crash leaves at most unreferenced files, which the next scan or
compaction replaces.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from reelworks.core import arguments, blocks
from reelworks.core.arguments import checked
from reelworks.core.arrays import F64, I64, U64
from reelworks.core.config import Config
from reelworks.core.errors import UserError
from reelworks.core.log import logger
from reelworks.core.words import named
from reelworks.data.catalog.store import integrity, part_files, schema
from reelworks.data.catalog.store.part_files import Part
from reelworks.data.catalog.store.reader import RETIRED_SCHEMA, CatalogReader, prefetch_one, tombstones, too_old
from reelworks.data.catalog.store.rows import CatalogRows
from reelworks.data.catalog.store.schema import DERIVED, SCHEMA

if TYPE_CHECKING:
    from reelworks.data.catalog.config import DatasetConfig


@dataclass(frozen=True)
class Catalog:
    """One version of a catalog; later scans do not change it.

    Attributes:
        path: Folder of the catalog.
        parts: Parts that scans appended, oldest first.
        compacted: Number of the first parts that are compacted into one file.

    Examples:
        >>> import reelworks as rw
        >>> from reelworks.testing import sample_folder
        >>> catalog = rw.Catalog.scan(sample_folder(), to=sample_folder().parent / "catalog")
        >>> len(catalog.live())
        12
    """

    path: Path
    parts: tuple[Part, ...]
    compacted: int = 0

    @classmethod
    @named(catalog="to", path="folders")
    @checked(
        folders=arguments.any_of(arguments.FILE, arguments.a(Mapping, Sequence, Config)),
        to=arguments.PATH,
        workers=arguments.whole(0),
        engine=arguments.TEXT,
    )
    def scan(
        cls,
        folders: str | Path | Mapping[str, str | Path] | DatasetConfig | Sequence[DatasetConfig],
        *,
        to: str | Path,
        workers: int = 0,
        engine: str = "local",
    ) -> Catalog:
        """Bring a catalog up to date with folders of videos and pictures, or with lists of them, and log what there is to say of them.

        Args:
            folders: Path or address of one folder or list, or several by the name of their dataset; or `DatasetConfig`s,
                as `DataSpec` takes them, whose folders of companions are read too.
            to: Folder of the catalog; created if it does not exist. Unchanged files are not opened again.
            workers: Number of threads or processes of this machine that read files; 0 uses one for each core.
            engine: "local" reads the files on this machine; another name, on all workers of that engine, whatever `workers` is.

        Raises:
            UserError: A folder is missing or holds no media, the catalog cannot be written, or there is no such engine.
        """
        from reelworks.data.catalog.config import DatasetConfig
        from reelworks.data.catalog.scan import scan
        from reelworks.data.catalog.store import companions

        if isinstance(folders, DatasetConfig):
            folders = [folders]
        if isinstance(folders, str):
            datasets = [DatasetConfig(path=folders)]
        elif isinstance(folders, Mapping):
            datasets = [DatasetConfig(path=str(path), name=name) for name, path in folders.items()]
        else:
            datasets = list(arguments.checked_value("folders", folders, arguments.each(arguments.a(DatasetConfig))))
        sources = [dataset.place for dataset in datasets]
        sources += [source for d in datasets for source in companions.sources(d.place, d.companions)]
        for note in scan.scan_sources(sources, Path(to), workers=workers, engine=engine).notes:
            logger.info(note)
        return cls.open(to)

    @classmethod
    @named(catalog="path")
    @checked(path=arguments.PATH, version=arguments.optional(arguments.whole()))
    def open(cls, path: str | Path, version: int | None = None) -> Catalog:
        """Open a catalog as it is, or as it was when it had `version` parts.

        Raises:
            UserError: There is no catalog, it has no such version, is damaged, or was written by a newer Reelworks.
        """
        path = Path(path).absolute()  # a program may go to another folder
        if not os.access(path / "catalog.json", os.F_OK):  # false, too, in a folder that is closed to this user
            raise integrity.no_catalog(path)
        parts, compacted = part_files.read_list(path)
        if version is not None and version < compacted and version >= 0:
            raise too_old(path, version, compacted)
        if version is not None and not 0 <= version <= len(parts):
            raise UserError(
                f"the catalog {path} has no such version; its newest is {len(parts)}",
                code="no-such-catalog-version",
                field="version",
                value=version,
                remedy=f"give a number from 0 to {len(parts)}, or leave it out for the newest",
            )
        return cls(path, parts[:version], compacted)

    def __repr__(self) -> str:
        return (
            f"Catalog({str(self.path)!r}, version {self.version}, {sum(p.rows - p.retired for p in self.parts)} clips)"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the place and the version: another process opens the same files, which it must be able to read."""
        return _reopened, (self.path.absolute(), self.parts, self.compacted)

    def __deepcopy__(self, memo: dict[int, Any]) -> Catalog:
        return self  # a version never changes

    @classmethod
    def open_or_new(cls, path: Path) -> Catalog:
        """Open the newest version, or an empty catalog if none exists yet."""
        return cls.open(path) if (path / "catalog.json").exists() else cls(path, ())

    @property
    def version(self) -> int:
        """Version of the catalog: its number of parts."""
        return len(self.parts)

    def is_prefix_of(self, other: Catalog) -> bool:
        """Return whether another catalog is a later version of this one, with the same ordinals for its rows."""
        return self.parts == other.parts[: len(self.parts)]

    @property
    def table(self) -> pa.Table:
        """Table of all rows that have not been compacted away, by ordinal.

        Raises:
            UserError: A part is missing or damaged.
        """
        return self.all_rows().to_table()

    def columns(self, *names: str) -> pa.Table:
        """Return some columns of all rows appended up to this version; a row's index is its ordinal.

        Of rows that were compacted away only ordinal and uid are known, and all else is null.

        Raises:
            UserError: A part is missing or damaged.
        """
        rows, total = self.all_rows(), self.reader.num_rows
        columns = {}
        for name in names:
            column = pa.array(rows.column(name), type=SCHEMA.field(name).type)
            if len(rows) < total:
                whole = {"ordinal": lambda: np.arange(total), "uid": self.uids}.get(name)
                where = self.reader.index_of_ordinal
                column = pa.array(whole()) if whole else column.take(pa.array(where, mask=where < 0))
            columns[name] = column
        return pa.table(columns)

    def uids(self) -> U64:
        """Return the uids of all rows that the catalog ever had, indexed by ordinal."""
        rows, total = self.all_rows(), self.reader.num_rows
        if len(rows) == total:
            return rows.uid
        uids = np.zeros(total, dtype=np.uint64)
        uids[rows.ordinal] = rows.uid
        gone = tombstones(self.path, self.parts, self.reader.compacted)
        uids[gone.column("ordinal").to_numpy()] = gone.column("uid").to_numpy()
        return uids

    def rows_at(self, ordinals: I64) -> CatalogRows:
        """Return the rows with these ordinals, which must not be compacted away."""
        return self.all_rows().take(self.reader.index_of_ordinal[ordinals])

    @cached_property
    def reader(self) -> CatalogReader:
        """The open files of this version.

        Raises:
            UserError: A part is missing or damaged.
        """
        return CatalogReader(self.path, self.parts, self.compacted)

    def all_rows(self) -> CatalogRows:
        """Return all rows up to this version, retired ones included except those that were compacted away."""
        return self.reader.all_rows

    def live(self) -> CatalogRows:
        """Return the rows that are valid in this version, by ordinal: one for each clip.

        Their columns are read from disk when they are used, also if the catalog has been compacted meanwhile.

        Raises:
            UserError: A part is missing or damaged. Damage in a column may be found when the column is used.
        """
        return self.reader.live

    def source(self, dataset: str) -> dict[str, str] | None:
        """Return the newest entry of a dataset among the sources of the parts."""
        found = (source for part in reversed(self.parts) for source in part.sources if source["name"] == dataset)
        return next(found, None)

    def list_scores(self, dataset: str) -> frozenset[str]:
        """Return the names of the scores that a dataset's list gave at its last scan; others of its scores were measured."""
        source = self.source(dataset) or {"scores": ""}
        if "scores" in source:
            return frozenset(source["scores"].split())
        inside = self.live().of_datasets([dataset])  # written before there were measures
        return frozenset(name for name, score in self.live().scores.items() if not np.isnan(score[inside]).all())

    def lists_with(self, score: str) -> frozenset[str]:
        """Return the names of the datasets whose lists give a score."""
        names = {source["name"] for part in self.parts for source in part.sources}
        return frozenset(name for name in names if score in self.list_scores(name))

    def digest(self) -> str:
        """Return a digest of the live rows' ordinals, uids, contents, captions and scores."""
        return self.digest_of(self.live())

    def digest_of(self, rows: CatalogRows) -> str:
        """Return the digest of some of the live rows; it is kept in the folder if it took long to compute."""
        return self.reader.digest_of(rows)

    def append(self, rows: pa.Table, retired: I64, sources: Sequence[dict[str, str]]) -> Catalog:
        """Append a part; the caller must hold the catalog's lock.

        Args:
            rows: Table of `SCHEMA` and scores; ordinals are assigned here.
            retired: Ordinals of live rows that are no longer valid.
            sources: The folders scanned, as `Part` has them.
        """
        if problems := integrity.problems(rows):
            at, problem = next(iter(problems.items()))
            raise AssertionError(
                f"a row of {rows.column('path')[at].as_py()!r} that the catalog would refuse: {problem}"
            )
        rows = _numbered(rows.sort_by("uid"), sum(part.rows for part in self.parts))
        if len(rows):
            for name, columns in DERIVED.items():
                mask = schema.derive(name, *(rows.column(column).combine_chunks() for column in columns))
                rows = rows.append_column(name, pa.array(mask, pa.bool_()))
        return self._with_part(iter([rows] if len(rows) else []), len(rows), retired, sources)

    def append_scores(
        self, rows: CatalogRows, at: I64, scores: Mapping[str, F64], sources: Sequence[dict[str, str]]
    ) -> Catalog:
        """Append a part that has some rows anew, with new scores beside their others; the caller must hold the catalog's lock.

        Args:
            rows: Live rows of this version, in their order.
            at: Indices of those that change, in order, of which there is at least one.
            scores: The new scores of all `rows` by name.
            sources: As for `append`.
        """
        retired, first = rows.ordinal[at], self.reader.num_rows
        is_meant = blocks.mask(retired, first)[self.all_rows().ordinal]

        def tables() -> Iterator[pa.Table]:
            done = 0
            for table in self.reader.tables(is_meant):
                some = at[done : done + len(table)]
                new = _numbered(table, first + done)
                for name, values in scores.items():
                    new = schema.with_score(new, name, values[some])
                done += len(table)
                yield new

        return self._with_part(prefetch_one(table for table in tables() if len(table)), len(at), retired, sources)

    def _with_part(
        self, tables: Iterator[pa.Table], rows: int, retired: I64, sources: Sequence[dict[str, str]]
    ) -> Catalog:
        newest = Catalog.open_or_new(self.path)
        assert self.parts == newest.parts, "only the newest version can grow"
        if rows:
            part_files.write_tables(self.path / part_files.part_name(self.version), tables)
        if len(retired):
            table = pa.table([pa.array(np.sort(retired))], schema=RETIRED_SCHEMA)
            part_files.write_tables(self.path / part_files.retired_name(self.version), iter([table]))
        parts = (*self.parts, Part(rows, len(retired), time.time(), list(sources)))
        part_files.write_list(self.path, parts, newest.compacted)
        return Catalog(self.path, parts, newest.compacted)


def _numbered(rows: pa.Table, first: int) -> pa.Table:
    """Return rows with consecutive ordinals."""
    ordinals = pa.array(np.arange(first, first + len(rows)), type=pa.int64())
    return rows.set_column(0, SCHEMA.field("ordinal"), ordinals)


def _reopened(path: Path, parts: tuple[Part, ...], compacted: int) -> Catalog:
    """Return a pickled catalog; refuse another one that has taken its place."""
    catalog = Catalog.open(path, len(parts)) if parts else Catalog(path, parts, compacted)
    if catalog.parts != parts:
        raise UserError(
            "the catalog in this folder is not the one that was pickled: it was scanned anew since",
            code="catalog-replaced",
            field="catalog",
            value=str(path),
            remedy="open the catalog again with Catalog.open, and pickle that",
        )
    return catalog
