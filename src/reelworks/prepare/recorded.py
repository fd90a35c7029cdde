"""The catalogs that a run's records speak of."""

from __future__ import annotations

from reelworks.catalog.store import Catalog
from reelworks.core.errors import UserError
from reelworks.prepare import recording
from reelworks.run.folder import RunFolder
from reelworks.run.records import About, RecordError


def catalog(run: RunFolder, about: About) -> Catalog:
    """Open the kept catalog of a record, at the version that the segment was planned on.

    Raises:
        RecordError: It is gone or damaged.
    """
    place = run.coverage_folder / about.catalog
    try:
        found = Catalog.open(place, about.catalog_version)
        same = recording.uids_digest(found) == about.catalog_uids
    except UserError as error:
        raise RecordError(
            f"{place.name}, the catalog that the records speak of, cannot be read: {error.problem}"
        ) from error
    if not same:
        raise RecordError(f"{place.name}, the catalog that the records speak of, is not as it was kept")
    return found
