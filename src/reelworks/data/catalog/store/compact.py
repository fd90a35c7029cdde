"""Compact a catalog: rewrite its live rows into one file, so that retired rows cost nothing but 16 bytes on disk.

Rows keep their ordinals, and the version stays what it was: the new files show exactly what the former ones did.
They are complete on disk before `catalog.json` names them, and the former ones are removed after that, so that a
compaction that is killed leaves the catalog as it was before or as it is afterwards, with needless files at worst.
Files that a run keeps as hard links remain.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from reelworks.core import blocks, storage
from reelworks.data.catalog.store import part_files, reader
from reelworks.data.catalog.store.store import Catalog
from reelworks.data.run import lock

_FILES = re.compile(r"(?:part|retired)-(?P<part>\d{6})\.parquet|compact-(?P<compact>\d{6})(?:-retired)?\.parquet")


@dataclass(frozen=True)
class Compacted:
    """Result of a compaction; sizes are those of the catalog's Parquet files."""

    rows: int  # live rows
    dropped: int  # retired rows whose columns were removed
    version: int  # of the catalog; earlier ones can no longer be opened
    bytes_before: int
    bytes_after: int


def compact(path: Path) -> Compacted:
    """Compact a catalog in place; scans of it have to wait.

    Raises:
        UserError: There is no catalog, it is damaged, or a scan is running.
    """
    Catalog.open(path)  # otherwise the lock would make the folder
    with lock.hold(path / ".lock", doing="scan", field="catalog", remedy="wait until it has ended") as held:
        catalog = Catalog.open(path)
        before = _num_bytes(path)
        dropped = len(catalog.all_rows()) - len(catalog.live())
        if dropped or catalog.version > max(catalog.compacted, 1):  # more than one file has rows
            held.check()
            _rewrite(catalog)
        _remove_others(Catalog.open(path))
    return Compacted(len(catalog.live()), dropped, catalog.version, before, _num_bytes(path))


def _rewrite(catalog: Catalog) -> None:
    path, version = catalog.path, catalog.version
    rows, live = catalog.all_rows(), catalog.live()
    alive = blocks.mask(live.ordinal, sum(part.rows for part in catalog.parts))
    part_files.write_tables(path / part_files.compact_name(version), catalog.reader.tables(alive[rows.ordinal]))
    gone = np.flatnonzero(~alive)
    if len(gone):
        table = pa.table([pa.array(gone), pa.array(catalog.uids()[gone])], schema=reader.TOMBSTONES_SCHEMA)
        part_files.write_tables(path / part_files.gone_name(version), iter([table]))
    storage.fsync_folder(path)
    part_files.write_list(path, catalog.parts, version)


def _remove_others(catalog: Catalog) -> None:
    """Remove files that `catalog.json` does not name: those compacted now, and what a killed compaction left."""
    for file in catalog.path.iterdir():
        name = _FILES.fullmatch(file.name)
        if name is None:
            continue
        compacted_part = name["part"] is not None and int(name["part"]) < catalog.compacted
        if compacted_part or (name["compact"] is not None and int(name["compact"]) != catalog.compacted):
            file.unlink(missing_ok=True)


def _num_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.glob("*.parquet"))
