"""Catalogs that a run keeps beside its records, whatever becomes of the folders that they were read from.

A part never changes once `catalog.json` names it, so a kept catalog shares its parts with the original by hard
links and takes no room of its own; on another file system they are copied. A catalog that was deleted and made
anew has other parts, and is kept as another one: its rows have other ordinals.
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
    """Keep a catalog in a folder of kept ones, where it grows with the original.

    Returns:
        Where it is kept.

    Raises:
        OSError: It could not be written.
    """
    storage.mkdirs(folder)
    number = 0
    while (place := folder / _NAME.format(number)).exists():
        there = _open(place)
        if there is not None and (there.is_prefix_of(catalog) or catalog.is_prefix_of(there)):
            _complete(place, catalog, there.version)
            if there.version < catalog.version:
                files.write_json(place / "catalog.json", store.document(catalog.parts))
            return place
        number += 1
    unfinished = place.with_name(f".{place.name}.tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    storage.mkdir(unfinished)
    _complete(unfinished, catalog, 0)
    files.write_json(unfinished / "catalog.json", store.document(catalog.parts))
    storage.rename(unfinished, place)
    storage.fsync_folder(folder)
    return place


def _open(place: Path) -> Catalog | None:
    try:
        return Catalog.open(place)
    except UserError:
        return None  # damaged: it stays as it is, and the catalog is kept anew


def _complete(place: Path, catalog: Catalog, version: int) -> None:
    """Add the parts that are not there, before `catalog.json` names them.

    Args:
        place: The kept catalog.
        catalog: The original.
        version: Parts that are named there.
    """
    unnamed = set(
        store.files_of(catalog.parts, version)
    )  # those of a start that was killed here are made anew
    for name in store.files_of(catalog.parts, 0):
        target = place / name
        if name not in unnamed and target.exists():
            continue
        target.unlink(missing_ok=True)
        try:
            os.link(catalog.path / name, target)
        except OSError:
            with (catalog.path / name).open("rb") as source, storage.create(target) as f:
                shutil.copyfileobj(source, f)
    storage.fsync_folder(place)
