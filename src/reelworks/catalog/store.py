"""Read and write the folder of a catalog: Parquet parts, which are only ever added.

    catalog.json            format, and one entry for each part: rows, retired, time, sources
    part-000000.parquet     rows that a scan appended, sorted by uid
    retired-000000.parquet  ordinals of former rows that the same scan retired

The number of parts is the catalog's version; an earlier version is its first parts. Parts are flushed to disk
before `catalog.json` names them, so that a crash leaves at most unreferenced files, which the next scan replaces.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from reelworks.catalog import integrity
from reelworks.catalog.rows import SCHEMA, SCORE, CatalogRows
from reelworks.core import files, storage
from reelworks.core.errors import UserError

FORMAT_VERSION = 2
_RETIRED_SCHEMA = pa.schema([pa.field("ordinal", pa.int64(), nullable=False)])


@dataclass(frozen=True)
class Part:
    """Rows that one scan added."""

    rows: int
    retired: int  # rows of earlier parts
    time: float  # of the scan, in seconds since 1970
    sources: list[dict[str, str]]  # the folders scanned, each with "name" and "root"

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Part:
        """Read an entry of `catalog.json`; an invalid one raises KeyError, TypeError, ValueError or OverflowError."""
        rows, retired = int(value["rows"]), int(value["retired"])
        if min(rows, retired) < 0:
            raise ValueError(f"a part has {rows} rows and retires {retired}")
        return cls(rows, retired, float(value["time"]), list(value["sources"]))


@dataclass(frozen=True)
class Catalog:
    """One version of a catalog; later scans do not change it.

    Attributes:
        path: Folder of the catalog.
        parts: Parts that scans appended, oldest first.

    Examples:
        >>> import reelworks as rw
        >>> from reelworks.testing import sample_folder
        >>> catalog = rw.Catalog.scan(sample_folder(), to=sample_folder().parent / "catalog")
        >>> len(catalog.live())
        12
    """

    path: Path
    parts: tuple[Part, ...]

    @classmethod
    def scan(cls, folders: str | Path | Mapping[str, str | Path], *, to: str | Path, workers: int = 0) -> Catalog:
        """Bring a catalog up to date with folders of videos and pictures, or with lists of them.

        Args:
            folders: One folder or list, or several by the name of their dataset.
            to: Folder of the catalog; created if it does not exist. Unchanged files are not opened again.
            workers: Number of threads or processes that read files; 0 uses one for each core.

        Raises:
            UserError: A folder is missing or holds no media, or the catalog cannot be written.
        """
        from reelworks.catalog import scan
        from reelworks.catalog.config import DatasetConfig

        named = folders if isinstance(folders, Mapping) else {None: folders}
        sources = [DatasetConfig(path=str(path), name=name).place for name, path in named.items()]
        scan.scan_sources(sources, Path(to), workers=workers or os.cpu_count() or 1)
        return cls.open(to)

    @classmethod
    def open(cls, path: str | Path, version: int | None = None) -> Catalog:
        """Open a catalog as it is, or as it was when it had `version` parts.

        Raises:
            UserError: There is no catalog, it has no such version, is damaged, or was written by a newer Reelworks.
        """
        path = Path(path)
        if not (path / "catalog.json").is_file():
            raise UserError(
                "there is no catalog in this folder",
                code="no-catalog",
                field="catalog",
                value=str(path),
                remedy=f"create one with: reelworks scan DIR -o {path}",
            )
        parts = _read_parts(path)
        if version is not None and not 0 <= version <= len(parts):
            raise UserError(
                f"the catalog {path} has no such version; its newest is {len(parts)}",
                code="no-such-catalog-version",
                field="version",
                value=version,
                remedy=f"give a number from 0 to {len(parts)}, or leave it out for the newest",
            )
        return cls(path, parts[:version])

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

    @cached_property
    def table(self) -> pa.Table:
        """Table of all rows appended up to this version, by ordinal.

        Raises:
            UserError: A part is missing or damaged.
        """
        return self._read(SCHEMA, scores=True)

    def _read(self, schema: Any, *, scores: bool) -> pa.Table:
        first, tables = 0, [schema.empty_table()]
        for i, part in enumerate(self.parts):
            if part.rows:
                tables.append(_read_parquet(self.path / _part_name(i), schema, part.rows, first, scores=scores))
            first += part.rows
        return pa.concat_tables(tables, promote_options="default").unify_dictionaries()

    def columns(self, *names: str) -> pa.Table:
        """Return some columns of all rows appended up to this version, by ordinal, to save memory.

        Raises:
            UserError: A part is missing or damaged.
        """
        return self._read(pa.schema([SCHEMA.field(name) for name in names]), scores=False)

    def all_rows(self) -> CatalogRows:
        """Return all rows up to this version, retired ones included."""
        return CatalogRows.from_table(self.table)

    def live(self) -> CatalogRows:
        """Return the rows that are valid in this version, by ordinal: one for each clip."""
        return self._live

    @cached_property
    def _live(self) -> CatalogRows:
        rows = self.all_rows()
        integrity.check_rows(rows, self.path)
        alive = np.ones(len(rows), dtype=np.bool_)
        alive[self._retired()] = False
        live = rows if alive.all() else rows.take(alive)
        integrity.check_one_row_per_uid(live, self.path)
        return live

    def _retired(self) -> NDArray[np.int64]:
        first, ordinals = 0, [np.zeros(0, dtype=np.int64)]
        for i, part in enumerate(self.parts):
            if part.retired:
                table = _read_parquet(self.path / _retired_name(i), _RETIRED_SCHEMA, part.retired)
                retired = table.column("ordinal").to_numpy()
                if retired.min() < 0 or retired.max() >= first:
                    problem = f"a part retires a row that is not among the {first} rows before it"
                    raise integrity.damaged(self.path, problem)
                ordinals.append(retired)
            first += part.rows
        return np.concatenate(ordinals)

    def live_ordinals(self, uids: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the ordinals of the live rows of clips, -1 for a clip without one."""
        live = self.live()
        if not len(live):
            return np.full(len(uids), -1, dtype=np.int64)
        positions = live.find(uids)
        return np.where(positions < 0, -1, live.ordinal[positions])

    def digest(self) -> str:
        """Return a digest of the live rows' ordinals, uids, contents, captions and scores."""
        return self.live().digest()

    def append(self, rows: pa.Table, retired: NDArray[np.int64], sources: Sequence[dict[str, str]]) -> Catalog:
        """Append a part; the caller must hold the catalog's lock.

        Args:
            rows: Table of `SCHEMA` and scores; ordinals are assigned here.
            retired: Ordinals of live rows that are no longer valid.
            sources: The folders scanned, each with "name" and "root".
        """
        assert self.parts == Catalog.open_or_new(self.path).parts, "only the newest version can grow"
        rows = rows.sort_by("uid")
        first = sum(part.rows for part in self.parts)
        ordinals = pa.array(np.arange(first, first + len(rows)), type=pa.int64())
        rows = rows.set_column(0, SCHEMA.field("ordinal"), ordinals)
        if len(rows):
            _write_parquet(self.path / _part_name(self.version), rows)
        if len(retired):
            table = pa.table([pa.array(np.sort(retired))], schema=_RETIRED_SCHEMA)
            _write_parquet(self.path / _retired_name(self.version), table)
        grown = Catalog(self.path, (*self.parts, Part(len(rows), len(retired), time.time(), list(sources))))
        _write_parts(self.path, grown.parts)
        return grown


def _part_name(index: int) -> str:
    return f"part-{index:06d}.parquet"


def _retired_name(index: int) -> str:
    return f"retired-{index:06d}.parquet"


def _write_parts(path: Path, parts: Sequence[Part]) -> None:
    files.write_json(path / "catalog.json", {"format": FORMAT_VERSION, "parts": [asdict(part) for part in parts]})


def _read_parts(path: Path) -> tuple[Part, ...]:
    try:
        stored = json.loads((path / "catalog.json").read_text(encoding="utf-8"))
        newer = stored["format"] > FORMAT_VERSION
        parts = () if newer else tuple(Part.from_json(part) for part in stored["parts"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise integrity.damaged(path, f"catalog.json cannot be read: {error}") from error
    if newer:
        raise UserError(
            f"the catalog has format {stored['format']}, this version reads up to {FORMAT_VERSION}",
            code="catalog-too-new",
            field="catalog",
            value=str(path),
            remedy="update Reelworks",
        )
    return parts


def _read_parquet(file: Path, schema: Any, num_rows: int, first: int = 0, *, scores: bool = False) -> pa.Table:
    try:
        stored = pq.read_schema(file).names
        if scores:
            schema = pa.schema([*schema, *((name, pa.float64()) for name in stored if name.startswith(SCORE))])
        names = [name for name in schema.names if name in stored]
        table = pq.read_table(file, columns=names, page_checksum_verification=True)
        table = integrity.conform(table, schema, first)
    except integrity.ColumnError as error:
        raise integrity.damaged(file.parent, f"{file.name} {error}") from error
    except (OSError, ValueError, pa.ArrowException) as error:
        raise integrity.damaged(file.parent, f"{file.name} cannot be read: {error}") from error
    if len(table) != num_rows:
        raise integrity.damaged(file.parent, f"{file.name} has {len(table)} rows instead of {num_rows}")
    return table


def _write_parquet(file: Path, table: pa.Table) -> None:
    file.unlink(missing_ok=True)  # a run may have a hard link to the former file, which must not be overwritten
    with file.open("wb") as f:
        pq.write_table(table, f, compression="zstd", write_page_checksum=True)
        f.flush()
        os.fsync(f.fileno())


_NAME = "catalog-{:03d}"


def keep(catalog: Catalog, folder: Path) -> Path:
    """Copy a catalog into a folder of copies, or bring its copy there up to date; return the path of the copy."""
    storage.mkdirs(folder)
    number = 0
    while (path := folder / _NAME.format(number)).exists():
        copy = _open(path)
        if copy is not None and (copy.is_prefix_of(catalog) or catalog.is_prefix_of(copy)):
            _complete(path, catalog, copy.version)
            if copy.version < catalog.version:
                _write_parts(path, catalog.parts)
            return path
        number += 1
    unfinished = path.with_name(f".{path.name}.tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    storage.mkdir(unfinished)
    _complete(unfinished, catalog, 0)
    _write_parts(unfinished, catalog.parts)
    storage.rename(unfinished, path)
    storage.fsync_folder(folder)
    return path


def _open(path: Path) -> Catalog | None:
    try:
        return Catalog.open(path)
    except UserError:
        return None  # a damaged copy is left alone, and the catalog copied to another folder


def _complete(path: Path, catalog: Catalog, version: int) -> None:
    """Add the missing parts to a copy, whose `catalog.json` names the first `version` ones."""
    names = [(i, _part_name(i)) for i, part in enumerate(catalog.parts) if part.rows]
    names += [(i, _retired_name(i)) for i, part in enumerate(catalog.parts) if part.retired]
    for i, name in names:
        target = path / name
        if i < version and target.exists():  # an interrupted copy may have left later ones incomplete
            continue
        target.unlink(missing_ok=True)
        try:
            os.link(catalog.path / name, target)
        except OSError:
            with (catalog.path / name).open("rb") as source, storage.create(target) as f:
                shutil.copyfileobj(source, f)
    storage.fsync_folder(path)
