"""Keep copies of a catalog in a run's folder, so that its records can be read whatever becomes of the catalog."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from reelworks.core import storage
from reelworks.core.errors import UserError
from reelworks.data.catalog.store import part_files
from reelworks.data.catalog.store.part_files import compact_name, gone_name, part_name, retired_name
from reelworks.data.catalog.store.store import Catalog

_NAME = "catalog-{:03d}"  # those that no record needs are removed, so that a number may be given again


def keep(catalog: Catalog, folder: Path) -> Path:
    """Copy a catalog into a folder of copies, or bring its copy there up to date; return the path of the copy."""
    storage.mkdirs(folder)
    catalog = replace(catalog, compacted=catalog.reader.compacted)  # which may have been compacted since it was opened
    former = {int(path.name[8:]): path for path in folder.glob("catalog-*") if path.name[8:].isdecimal()}
    for _, path in sorted(former.items()):
        copy = _open(path)
        if copy is not None and _continues(copy, catalog):
            _complete(path, catalog, copy)
            if copy.version < catalog.version:
                part_files.write_list(path, catalog.parts, copy.compacted)
            return path
    path = folder / _NAME.format(max(former, default=-1) + 1)
    unfinished = path.with_name(f".{path.name}.tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    storage.mkdir(unfinished)
    _complete(unfinished, catalog, Catalog(unfinished, (), catalog.compacted))
    part_files.write_list(unfinished, catalog.parts, catalog.compacted)
    storage.rename(unfinished, path)
    storage.fsync_folder(folder)
    return path


def _open(path: Path) -> Catalog | None:
    with suppress(UserError):
        return Catalog.open(path)
    return None  # a damaged copy is left alone, and the catalog copied to another folder


def _continues(copy: Catalog, catalog: Catalog) -> bool:
    """Return whether a copy has, or can be given, all parts of a catalog without changing what it has."""
    if not (copy.is_prefix_of(catalog) or catalog.is_prefix_of(copy)):
        return False
    return copy.compacted == catalog.compacted or (
        copy.compacted <= catalog.version and catalog.compacted <= copy.version
    )


def _complete(path: Path, catalog: Catalog, copy: Catalog) -> None:
    """Add the missing files to a copy, whose `catalog.json` names the files of `copy`."""
    names = [(i, part_name(i)) for i, part in enumerate(catalog.parts) if part.rows]
    names += [(i, retired_name(i)) for i, part in enumerate(catalog.parts) if part.retired]
    compacted = copy.compacted
    if compacted == catalog.compacted > 0:
        gone = any(part.retired for part in catalog.parts[:compacted])
        names += [(compacted - 1, compact_name(compacted))] + [(compacted - 1, gone_name(compacted))] * gone
    for i, name in names:
        target = path / name
        if i < compacted and name in (part_name(i), retired_name(i)):
            continue
        if i < copy.version and target.exists():  # an interrupted copy may have left later ones incomplete
            continue
        if i < catalog.compacted and compacted < catalog.compacted:
            continue  # the copy has the parts that the catalog has compacted
        target.unlink(missing_ok=True)
        try:
            os.link(catalog.path / name, target)
        except OSError:
            with (catalog.path / name).open("rb") as source, storage.create(target) as f:
                shutil.copyfileobj(source, f)
    storage.fsync_folder(path)
