"""Copy a run's catalogs into its folder, so that its records stay readable if the originals are deleted.

A part never changes once `catalog.json` names it, so a copy shares its parts with the original by hard links and
takes no disk space of its own; on another file system they are copied. A catalog that was deleted and made again
has other parts and ordinals, and is copied to another folder.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from reelworks.catalog import store
from reelworks.catalog.store import Catalog
from reelworks.core import files, storage
from reelworks.core.errors import UserError

_NAME = "catalog-{:03d}"


def keep(catalog: Catalog, folder: Path) -> Path:
    """Copy a catalog into a folder of copies, or bring its copy there up to date.

    Returns:
        Path of the copy.

    Raises:
        OSError: The copy could not be written.
    """
    storage.mkdirs(folder)
    number = 0
    while (path := folder / _NAME.format(number)).exists():
        copy = _open(path)
        if copy is not None and (copy.is_prefix_of(catalog) or catalog.is_prefix_of(copy)):
            _complete(path, catalog, copy.version)
            if copy.version < catalog.version:
                files.write_json(path / "catalog.json", store.document(catalog.parts))
            return path
        number += 1
    unfinished = path.with_name(f".{path.name}.tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    storage.mkdir(unfinished)
    _complete(unfinished, catalog, 0)
    files.write_json(unfinished / "catalog.json", store.document(catalog.parts))
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
    unnamed = set(
        store.files_of(catalog.parts, version)
    )  # an interrupted copy may have left these incomplete
    for name in store.files_of(catalog.parts, 0):
        target = path / name
        if name not in unnamed and target.exists():
            continue
        target.unlink(missing_ok=True)
        try:
            os.link(catalog.path / name, target)
        except OSError:
            with (catalog.path / name).open("rb") as source, storage.create(target) as f:
                shutil.copyfileobj(source, f)
    storage.fsync_folder(path)
