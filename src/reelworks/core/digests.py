"""Digests in hex: 128-bit BLAKE2b of bytes, JSON and arrays for identity, 128-bit XXH3 of files against damage."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

_BLOCK_BYTES = 1 << 20
_WHOLE_LIMIT_BYTES = 64 << 20


def digest_bytes(data: bytes) -> str:
    """Digest a byte string."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def digest_json(value: Any) -> str:
    """Digest a JSON value independently of key order and white space."""
    return digest_bytes(json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode())


def digest_arrays(**arrays: np.ndarray[Any, Any]) -> str:
    """Digest named arrays: name, dtype, shape and little-endian content each count."""
    h = hashlib.blake2b(digest_size=16)
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        h.update(f"{name}:{array.dtype.str}:{array.shape};".encode())
        h.update(array.data.cast("B") if array.size else b"")
    return h.hexdigest()


def digest_file(path: Path) -> str:
    """Digest a whole file, read in blocks."""
    h = hashlib.blake2b(digest_size=16)
    with path.open("rb") as f:
        while block := f.read(_BLOCK_BYTES):
            h.update(block)
    return h.hexdigest()


def fingerprint_file(path: Path) -> str:
    """Tell whether a file's content changed: its size and a digest.

    Files up to 64 MB are read whole; larger ones by 64 blocks of 1 MB, spread evenly, first and last
    included, so that a long film costs no more than a short clip.
    """
    size = path.stat().st_size
    if size <= _WHOLE_LIMIT_BYTES:
        return f"{size:x}-{digest_file(path)}"
    h = hashlib.blake2b(digest_size=16)
    with path.open("rb") as f:
        for offset in np.linspace(0, size - _BLOCK_BYTES, 64).astype(np.int64):
            f.seek(int(offset))
            h.update(f.read(_BLOCK_BYTES))
    return f"{size:x}-{h.hexdigest()}"


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
