"""Read and write the folder of a catalog: Parquet parts, which are only ever added.

    catalog.json                    format, `compacted`, and one entry for each part: rows, retired, time, sources
    part-000000.parquet             rows that a scan appended, sorted by uid
    retired-000000.parquet          ordinals of former rows that the same scan retired
    compact-000012.parquet          in place of the first 12 parts: the rows that were live in version 12
    compact-000012-retired.parquet  ordinal and uid of all other rows of these parts

The number of parts is the catalog's version; an earlier version is its first parts. Ordinals are permanent: after
`compact` rows keep theirs, and only versions before the compacted one can no longer be opened. Files are flushed to
disk before `catalog.json` names them, so that a crash leaves at most unreferenced files, which the next scan or
compaction replaces.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from reelworks.core import arguments, cores, digests, files
from reelworks.core.arguments import checked
from reelworks.core.config import Config
from reelworks.core.errors import UserError
from reelworks.core.words import named
from reelworks.data.catalog.store import column_files, integrity, part_files, part_list
from reelworks.data.catalog.store.column_files import ColumnFiles
from reelworks.data.catalog.store.part_files import PartFile, Stored
from reelworks.data.catalog.store.part_list import Part
from reelworks.data.catalog.store.rows import DERIVED, SCHEMA, CatalogRows, derive

if TYPE_CHECKING:
    from reelworks.core.ray_cluster import Engine
    from reelworks.data.catalog.config import DatasetConfig

_KEEP_DIGEST_FROM_ROWS = 1 << 18
_GROUP_ROWS = 1 << 17  # rows that are read at once to show a few of them
_DIGEST = "digest-{:06d}.json"
_ORDINAL = pa.field("ordinal", pa.int64(), nullable=False)
_RETIRED_SCHEMA = pa.schema([_ORDINAL])
TOMBSTONES_SCHEMA = pa.schema([_ORDINAL, SCHEMA.field("uid")])


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
        folders=arguments.any_of(arguments.PATH, arguments.a(Mapping, Sequence, Config)),
        to=arguments.PATH,
        workers=arguments.whole(0),
        engine=arguments.one_of("local", "ray"),
    )
    def scan(
        cls,
        folders: str | Path | Mapping[str, str | Path] | DatasetConfig | Sequence[DatasetConfig],
        *,
        to: str | Path,
        workers: int = 0,
        engine: Engine = "local",
    ) -> Catalog:
        """Bring a catalog up to date with folders of videos and pictures, or with lists of them.

        Args:
            folders: One folder or list, or several by the name of their dataset; or `DatasetConfig`s, as `DataSpec` takes
                them, whose folders of companions are read too.
            to: Folder of the catalog; created if it does not exist. Unchanged files are not opened again.
            workers: Number of threads or processes that read files; 0 uses one for each core.
            engine: "ray" reads the files on all nodes of a Ray cluster, whatever `workers` is.

        Raises:
            UserError: A folder is missing or holds no media, the catalog cannot be written, or there is no Ray.
        """
        from reelworks.data.catalog.config import DatasetConfig
        from reelworks.data.catalog.scan import scan
        from reelworks.data.catalog.store import companions

        if isinstance(folders, DatasetConfig):
            folders = [folders]
        if isinstance(folders, str | Path):
            datasets = [DatasetConfig(path=str(folders))]
        elif isinstance(folders, Mapping):
            datasets = [DatasetConfig(path=str(path), name=name) for name, path in folders.items()]
        else:
            datasets = list(arguments.checked_value("folders", folders, arguments.each(arguments.a(DatasetConfig))))
        sources = [dataset.place for dataset in datasets]
        sources += [
            source
            for d, place in zip(datasets, sources, strict=True)
            for source in companions.sources(place, d.companions)
        ]
        scan.scan_sources(sources, Path(to), workers=workers or cores.count(), engine=engine)
        return cls.open(to)

    @classmethod
    @named(catalog="path")
    @checked(path=arguments.PATH, version=arguments.optional(arguments.whole()))
    def open(cls, path: str | Path, version: int | None = None) -> Catalog:
        """Open a catalog as it is, or as it was when it had `version` parts.

        Raises:
            UserError: There is no catalog, it has no such version, is damaged, or was written by a newer Reelworks.
        """
        path = Path(path)
        if not os.access(path / "catalog.json", os.F_OK):  # false, too, in a folder that is closed to this user
            raise integrity.no_catalog(path)
        parts, compacted = part_list.read(path)
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
        rows, total = self.all_rows(), sum(part.rows for part in self.parts)
        columns = {}
        for name in names:
            column = pa.array(rows.column(name), type=SCHEMA.field(name).type)
            if len(rows) < total:
                whole = {"ordinal": lambda: np.arange(total), "uid": self.uids}.get(name)
                where = self._index_of_ordinal
                column = pa.array(whole()) if whole else column.take(pa.array(where, mask=where < 0))
            columns[name] = column
        return pa.table(columns)

    def uids(self) -> NDArray[np.uint64]:
        """Return the uids of all rows that the catalog ever had, indexed by ordinal."""
        rows, total = self.all_rows(), sum(part.rows for part in self.parts)
        if len(rows) == total:
            return rows.uid
        uids = np.zeros(total, dtype=np.uint64)
        uids[rows.ordinal] = rows.uid
        gone = self._tombstones()
        uids[gone.column("ordinal").to_numpy()] = gone.column("uid").to_numpy()
        return uids

    def rows_at(self, ordinals: NDArray[np.int64]) -> CatalogRows:
        """Return the rows with these ordinals, which must not be compacted away."""
        return self.all_rows().take(self._index_of_ordinal[ordinals])

    @cached_property
    def _index_of_ordinal(self) -> NDArray[np.int64]:
        index = np.full(sum(part.rows for part in self.parts), -1, dtype=np.int64)
        index[self.all_rows().ordinal] = np.arange(len(self.all_rows()))
        return index

    def all_rows(self) -> CatalogRows:
        """Return all rows up to this version, retired ones included except those that were compacted away."""
        return self._all

    @cached_property
    def _all(self) -> CatalogRows:
        return self._stored.rows()

    def live(self) -> CatalogRows:
        """Return the rows that are valid in this version, by ordinal: one for each clip.

        Their columns are read from disk when they are used, also if the catalog has been compacted meanwhile.

        Raises:
            UserError: A part is missing or damaged. Damage in a column may be found when the column is used.
        """
        return self._live

    @cached_property
    def _live(self) -> CatalogRows:
        count = sum(part.rows - part.retired for part in self.parts)
        if count < column_files.FROM_ROWS:
            return self._checked_live(self.all_rows())[0]
        kept = self._column_files
        alive = None if kept is None else kept.get("alive", self._alive, np.bool_)
        if alive is None:
            return self._checked_live(self.all_rows())[0]
        return Stored(self._stored.files, alive).rows(kept)

    def _checked_live(self, live: CatalogRows) -> tuple[CatalogRows, NDArray[np.bool_]]:
        """Return the live ones of all rows, and a mask of them."""
        live.load("ordinal", "uid")
        ordinal, uid = live.ordinal, live.uid
        self._check_ordinals(ordinal)
        alive = np.ones(len(ordinal), dtype=np.bool_)
        alive[self._retired(ordinal)] = False
        if not alive.all():
            live = Stored(self._stored.files, alive).rows()
            vars(live).update(ordinal=ordinal[alive], uid=uid[alive])  # not read again
            vars(self.all_rows()).pop("uid", None)
        integrity.check_one_row_per_uid(live, self.path)
        return live, alive

    def _alive(self) -> Iterator[NDArray[np.bool_]]:
        """Yield which rows are live, after all checks, which processes that map the columns do not repeat."""
        yield self._checked_live(self._stored.rows())[1]

    @cached_property
    def _column_files(self) -> ColumnFiles | None:
        return ColumnFiles.open(self.path / f"columns-{self.version:06d}-{self._identity[:8]}")

    @cached_property
    def _identity(self) -> str:
        return digests.digest_json([asdict(part) for part in self.parts])

    def identity_of(self, rows: CatalogRows) -> str:
        """Return a digest that tells some of the live rows from those of another version, without reading them."""
        # Of all live rows, the ordinals follow from the parts.
        is_all = len(rows) == sum(part.rows - part.retired for part in self.parts)
        return digests.digest_json([self._identity, "live" if is_all else digests.digest_arrays(ordinal=rows.ordinal)])

    @cached_property
    def _stored(self) -> Stored:
        """Open the files; their columns are read when they are used."""
        try:
            return Stored(self._open_files())
        except FileNotFoundError as error:
            _, compacted = part_list.read(self.path)
            if compacted == self.compacted:
                raise part_files.unreadable(Path(error.filename), error) from error
            if compacted > self.version:
                raise too_old(self.path, self.version, compacted) from error
            object.__setattr__(self, "compacted", compacted)  # the same version, in other files now
            return self._stored

    def stored_files(self) -> tuple[PartFile, ...]:
        """Return the open files of rows, oldest first."""
        return self._stored.files

    def _open_files(self) -> tuple[PartFile, ...]:
        files, first = [], 0
        for name, rows in self._files():
            if rows:
                files.append(PartFile.open(self.path / name, rows, first))
                first += rows
        return tuple(files)

    def _files(self) -> list[tuple[str, int]]:
        """List the files of rows with their numbers of rows."""
        parts = [(part_list.part_name(i), part.rows) for i, part in enumerate(self.parts)][self.compacted :]
        if not self.compacted:
            return parts
        before = self.parts[: self.compacted]
        live = sum(part.rows for part in before) - sum(part.retired for part in before)
        return [(part_list.compact_name(self.compacted), live), *parts]

    def _check_ordinals(self, ordinal: NDArray[np.int64]) -> None:
        """Refuse ordinals other than 0, 1, 2, …; before the compacted version they are ascending, with gaps."""
        first = sum(part.rows for part in self.parts[: self.compacted])
        compact = self._files()[0][1] if self.compacted else 0
        wrong = np.zeros(len(ordinal), dtype=np.bool_)
        wrong[compact:] = ordinal[compact:] != np.arange(first, first + len(ordinal) - compact)
        before = ordinal[:compact]
        wrong[:compact] = (np.diff(before, prepend=-1) <= 0) | (before >= first)
        if wrong.any():
            at = int(np.argmax(wrong))
            path = self.all_rows().path[at].as_py()
            raise integrity.damaged(self.path, f"row {at} ({path!r}) has ordinal = {ordinal[at]}")

    def _tombstones(self) -> pa.Table:
        """Return ordinal and uid of the rows that were compacted away."""
        gone = sum(part.retired for part in self.parts[: self.compacted])
        if not gone:
            return TOMBSTONES_SCHEMA.empty_table()
        file = self.path / part_list.gone_name(self.compacted)
        if not file.exists() and (newest := Catalog.open(self.path)).compacted > self.compacted:
            later = newest._tombstones()  # has these rows too
            return later.filter(pc.less(later.column("ordinal"), sum(part.rows for part in self.parts)))
        return _read_parquet(file, TOMBSTONES_SCHEMA, gone)

    def _retired(self, ordinal: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indices of retired rows, among rows with these ordinals."""
        first = sum(part.rows for part in self.parts[: self.compacted])
        indices = [np.zeros(0, dtype=np.int64)]
        for i, part in enumerate(self.parts[self.compacted :], self.compacted):
            if part.retired:
                table = _read_parquet(self.path / part_list.retired_name(i), _RETIRED_SCHEMA, part.retired)
                retired = table.column("ordinal").to_numpy()
                index = np.minimum(np.searchsorted(ordinal, retired), len(ordinal) - 1)
                if retired.min() < 0 or retired.max() >= first or (ordinal[index] != retired).any():
                    problem = f"a part retires a row that is not among the {first} rows before it"
                    raise integrity.damaged(self.path, problem)
                indices.append(index)
            first += part.rows
        return np.concatenate(indices)

    def live_ordinals(self, uids: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the ordinals of the live rows of clips, -1 for a clip without one."""
        live = self.live()
        if not len(live):
            return np.full(len(uids), -1, dtype=np.int64)
        positions = live.find(uids)
        return np.where(positions < 0, -1, live.ordinal[positions])

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

    def digest(self) -> str:
        """Return a digest of the live rows' ordinals, uids, contents, captions and scores."""
        return self.digest_of(self.live())

    def digest_of(self, rows: CatalogRows) -> str:
        """Return the digest of some of the live rows; it is kept in the folder if it took long to compute."""
        if len(rows) < _KEEP_DIGEST_FROM_ROWS:
            return rows.digest()
        try:
            stats = [(self.path / name).stat() for name, _ in self._files()]
        except OSError:  # merged or removed since they were opened
            return rows.digest()
        key = digests.digest_json([self.identity_of(rows), [[stat.st_size, stat.st_mtime_ns] for stat in stats]])
        kept = self._column_files if len(rows) >= column_files.FROM_ROWS else None
        with nullcontext() if kept is None else kept.lock("digest"):  # one of many processes computes it
            return self._kept_digest(key, rows)

    def _kept_digest(self, key: str, rows: CatalogRows) -> str:
        kept = self.path / _DIGEST.format(self.version)
        with suppress(OSError, ValueError, AttributeError):
            if (known := json.loads(kept.read_text(encoding="utf-8")).get(key)) is not None:
                return str(known)
        digest = rows.digest()
        with suppress(OSError):  # the folder may be read-only
            files.write_json(kept, {key: digest})
        return digest

    def append(self, rows: pa.Table, retired: NDArray[np.int64], sources: Sequence[dict[str, str]]) -> Catalog:
        """Append a part; the caller must hold the catalog's lock.

        Args:
            rows: Table of `SCHEMA` and scores; ordinals are assigned here.
            retired: Ordinals of live rows that are no longer valid.
            sources: The folders scanned, as `Part` has them.
        """
        newest = Catalog.open_or_new(self.path)
        assert self.parts == newest.parts, "only the newest version can grow"
        if problems := integrity.problems(rows):
            at, problem = next(iter(problems.items()))
            raise AssertionError(
                f"a row of {rows.column('path')[at].as_py()!r} that the catalog would refuse: {problem}"
            )
        rows = rows.sort_by("uid")
        first = sum(part.rows for part in self.parts)
        ordinals = pa.array(np.arange(first, first + len(rows)), type=pa.int64())
        rows = rows.set_column(0, SCHEMA.field("ordinal"), ordinals)
        if len(rows):
            _write_parquet(self.path / part_list.part_name(self.version), with_derived(rows))
        if len(retired):
            table = pa.table([pa.array(np.sort(retired))], schema=_RETIRED_SCHEMA)
            _write_parquet(self.path / part_list.retired_name(self.version), table)
        part = Part(len(rows), len(retired), time.time(), list(sources))
        grown = Catalog(self.path, (*self.parts, part), newest.compacted)
        part_list.write(grown.path, grown.parts, grown.compacted)
        return grown


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


def too_old(path: Path, version: int, compacted: int) -> UserError:
    """Return the error for a version that was compacted away."""
    return UserError(
        f"the catalog {path} was compacted at version {compacted}, and earlier versions can no longer be opened",
        code="catalog-version-compacted",
        field="version",
        value=version,
        remedy=f"open version {compacted} or a later one; runs keep copies of the versions that they trained on",
    )


def with_derived(rows: pa.Table) -> pa.Table:
    """Return a table of rows with the masks of `DERIVED` as further columns."""
    for name, columns in DERIVED.items():
        mask = derive(name, *(rows.column(n).combine_chunks() for n in columns))
        rows = rows.append_column(name, pa.array(mask, pa.bool_()))
    return rows


def _read_parquet(file: Path, schema: Any, num_rows: int) -> pa.Table:
    try:
        with pa.OSFile(str(file)) as source:
            table = pq.ParquetFile(source, page_checksum_verification=True).read()
        table = integrity.conform(table, schema, 0)
    except integrity.ColumnError as error:
        raise integrity.damaged(file.parent, f"{file.name} {error}") from error
    except (OSError, ValueError, pa.ArrowException) as error:
        raise part_files.unreadable(file, error) from error
    if len(table) != num_rows:
        raise integrity.damaged(file.parent, f"{file.name} has {len(table)} rows instead of {num_rows}")
    return table


@contextmanager
def new_parquet(file: Path, schema: Any) -> Iterator[Any]:
    """Yield a writer of a Parquet file, which is flushed to disk at the end."""
    file.unlink(missing_ok=True)  # a run may have a hard link to the former file, which must not be overwritten
    with file.open("wb") as f:
        with pq.ParquetWriter(f, schema, compression="zstd", write_page_checksum=True) as writer:
            yield writer
        f.flush()
        os.fsync(f.fileno())


def _write_parquet(file: Path, table: pa.Table) -> None:
    with new_parquet(file, table.schema) as writer:
        writer.write_table(table, row_group_size=_GROUP_ROWS)
