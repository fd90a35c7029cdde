"""Checksums of files that are checked for damage: 128 bits of XXH3 in hex, many times faster than a disk.

Unlike the digests that name things (`digests`), they are no proof against somebody who wants a collision.
"""

from __future__ import annotations

from pathlib import Path

import xxhash

_BLOCK_BYTES = 1 << 20

running = xxhash.xxh3_128


def of_bytes(data: bytes) -> str:
    """Checksum of a byte string."""
    return running(data).hexdigest()


def of_file(path: Path) -> str:
    """Checksum of a whole file, read in blocks."""
    checksum = running()
    with path.open("rb") as f:
        while block := f.read(_BLOCK_BYTES):
            checksum.update(block)
    return checksum.hexdigest()
