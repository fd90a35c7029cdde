"""The list of a catalog's parts, `catalog.json`, and the names of their files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from reelworks.core import files, user_files
from reelworks.core.errors import UserError
from reelworks.data.catalog.store import integrity

FORMAT_VERSION = 3


@dataclass(frozen=True)
class Part:
    """Rows that one scan added."""

    rows: int
    retired: int  # rows of earlier parts
    time: float  # of the scan, in seconds since 1970
    # The folders scanned, each with "name", "root", "scores", the names of the scores of its list, and "reader", the version
    # of the measures of videos.
    sources: list[dict[str, str]]

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Part:
        """Read an entry of `catalog.json`; an invalid one raises KeyError, TypeError, ValueError or OverflowError."""
        rows, retired = int(value["rows"]), int(value["retired"])
        if min(rows, retired) < 0:
            raise ValueError(f"a part has {rows} rows and retires {retired}")
        return cls(rows, retired, float(value["time"]), list(value["sources"]))


def part_name(index: int) -> str:
    """Return the name of the file with the rows of a part."""
    return f"part-{index:06d}.parquet"


def retired_name(index: int) -> str:
    """Return the name of the file with the rows that a part retires."""
    return f"retired-{index:06d}.parquet"


def compact_name(version: int) -> str:
    """Return the name of the file with the live rows of a compacted version."""
    return f"compact-{version:06d}.parquet"


def gone_name(version: int) -> str:
    """Return the name of the file with ordinal and uid of the rows that a compaction dropped."""
    return f"compact-{version:06d}-retired.parquet"


def write(path: Path, parts: Sequence[Part], compacted: int) -> None:
    """Write the list of the parts of a catalog, of which so many were compacted, into its folder."""
    stored = {
        "format": FORMAT_VERSION,
        "compacted": compacted,
        "parts": [asdict(part) for part in parts],
    }
    files.write_json(path / "catalog.json", stored)


def read(path: Path) -> tuple[tuple[Part, ...], int]:
    """Read the parts of the catalog in a folder, and how many of them were compacted.

    Raises:
        UserError: The list is damaged, or has the format of another version of Reelworks.
    """
    try:
        stored = user_files.read_json(path / "catalog.json")
        newer = stored["format"] > FORMAT_VERSION
        parts = () if newer else tuple(Part.from_json(part) for part in stored["parts"])
        compacted = 0 if newer else int(stored.get("compacted", 0))  # format 1 has no compaction
        if not 0 <= compacted <= len(parts):
            raise ValueError(f"{compacted} of {len(parts)} parts are compacted")
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise integrity.damaged(path, f"catalog.json cannot be read: {error}") from error
    if stored["format"] < FORMAT_VERSION:
        raise UserError(
            f"the catalog has format {stored['format']}, which lacks measures that this version reads",
            code="catalog-too-old",
            field="catalog",
            value=str(path),
            remedy="delete the folder and scan again: reelworks scan DIR -o CATALOG",
        )
    if newer:
        raise UserError(
            f"the catalog has format {stored['format']}, this version reads up to {FORMAT_VERSION}",
            code="catalog-too-new",
            field="catalog",
            value=str(path),
            remedy="update Reelworks",
        )
    return parts, compacted
