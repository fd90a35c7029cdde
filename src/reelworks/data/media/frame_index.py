"""Keep the frame times of long videos beside a catalog, so that decoding a few frames need not read the whole file.

    times-000000.parquet    one row for each file of at least a minute that a scan opened, by fingerprint

Deltas are compressed: a constant frame rate takes about 200 bytes for any length. A file without a row, or whose
frames are not found where the row says, is read as a whole, so that the index may be deleted at any time.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from reelworks.core import files
from reelworks.core.arrays import I64
from reelworks.data.media.frame_times import FrameTimes

FROM_SECONDS = 60.0  # shorter videos are read in some milliseconds
_FILES = "times-" + 6 * "[0-9]" + ".parquet"
_SCHEMA = pa.schema(
    [
        pa.field("fingerprint", pa.string(), nullable=False),
        pa.field("ticks", pa.binary(), nullable=False),
        pa.field("keys", pa.binary(), nullable=False),
        pa.field("tick_seconds", pa.float64(), nullable=False),
    ]
)


class PackedTimes(NamedTuple):
    """Compressed frame times of one file."""

    ticks: bytes
    keys: bytes
    tick_seconds: float


def pack(times: FrameTimes) -> PackedTimes | None:
    """Compress frame times; None if frames are not sought by them."""
    return PackedTimes(_pack(times.sought_at), _pack(times.keys), times.tick_seconds) if times.sought else None


def _pack(numbers: I64) -> bytes:
    return zlib.compress(np.diff(numbers, prepend=0).astype("<i8").tobytes())


def _unpack(data: bytes) -> I64:
    return np.cumsum(np.frombuffer(zlib.decompress(data), dtype="<i8"), dtype=np.int64)


def write(catalog: Path, found: Mapping[str, PackedTimes]) -> None:
    """Add the frame times of files, by fingerprint, to the index of a catalog."""
    known = _read(catalog) if found else {}
    new = {fingerprint: packed for fingerprint, packed in found.items() if known.get(fingerprint) != packed}
    if new:
        rows = [{"fingerprint": fingerprint, **packed._asdict()} for fingerprint, packed in new.items()]
        buffer = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA), buffer, compression="zstd", write_page_checksum=True)
        number = max((int(file.stem[6:]) + 1 for file in catalog.glob(_FILES)), default=0)
        files.write_bytes(catalog / f"times-{number:06d}.parquet", buffer.getvalue().to_pybytes())


def _read(catalog: Path) -> dict[str, PackedTimes]:
    packed: dict[str, PackedTimes] = {}
    for file in sorted(catalog.glob(_FILES)):
        try:
            table = pq.read_table(file, schema=_SCHEMA, page_checksum_verification=True)
        except (OSError, pa.ArrowException):
            continue  # damaged: its videos are read as a whole
        columns = (table.column(name).to_pylist() for name in _SCHEMA.names)
        packed |= {fingerprint: PackedTimes(*row) for fingerprint, *row in zip(*columns, strict=True)}
    return packed


class FrameIndex:
    """The index of a catalog, read when it is first asked."""

    def __init__(self, catalog: Path) -> None:
        self._catalog = catalog
        self._get = lru_cache(maxsize=64)(self._times)

    @cached_property
    def _packed(self) -> dict[str, PackedTimes]:
        return _read(self._catalog)

    def get(self, fingerprint: str) -> FrameTimes | None:
        """Return the frame times of a file with this content, if the index has them."""
        return self._get(fingerprint) if fingerprint in self._packed else None

    def _times(self, fingerprint: str) -> FrameTimes:
        ticks, keys, tick_seconds = self._packed[fingerprint]
        return FrameTimes(_unpack(ticks), _unpack(keys), tick_seconds, None, timed=True, doubted=True)
