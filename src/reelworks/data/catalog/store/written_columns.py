"""Remember from which kept values the measured columns of a catalog were written.

    measures/columns.json    for each column: the label of the values, the entry of the measure, and where it is complete

Copies and moved files get the values of the same label at the next scan, whatever else is kept of other versions. A column
that is missing here was not measured, or measured by nobody knows what: the folder may be deleted at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from reelworks.core import digests, files, user_files
from reelworks.data.catalog.store import kept_measures
from reelworks.data.catalog.store.store import Catalog

_FILE = "columns.json"


class WrittenColumn(NamedTuple):
    """A measured column of a catalog.

    Attributes:
        label: Name under which its values are kept, or the features of clips that a measure compares.
        entry: What names the measure on the command line.
        complete_in: Digest of the version of the catalog in which every clip was measured; "" for none.
    """

    label: str
    entry: str
    complete_in: str = ""


def state(catalog: Catalog) -> str:
    """Return a digest of the version of a catalog."""
    return digests.digest_json([asdict(part) for part in catalog.parts])


def read(catalog: Path) -> dict[str, WrittenColumn]:
    """Return the measured columns of a catalog by name."""
    with suppress(OSError, ValueError, AttributeError, TypeError):
        found = user_files.read_json(catalog / kept_measures.NAME / _FILE)
        return {name: WrittenColumn(*map(str, fields)) for name, fields in found.items()}
    return {}


def write(catalog: Path, columns: Mapping[str, WrittenColumn]) -> None:
    """Remember the measured columns of a catalog, unless they are known to be these."""
    if columns != read(catalog):
        files.write_json(catalog / kept_measures.NAME / _FILE, dict(columns))
