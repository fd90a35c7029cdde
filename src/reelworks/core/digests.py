"""Hex digests: 128-bit BLAKE2b of bytes, JSON and arrays for identity, 128-bit XXH3 of files to detect damage."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash
from typing_extensions import Buffer

from reelworks.core import hash_rng
from reelworks.core.arrays import U64

_BLOCK_BYTES = 1 << 20
FULL_READ_LIMIT_BYTES = 64 << 20
_PART = 1 << 18


def digest_bytes(data: bytes) -> str:
    """Return the BLAKE2b digest of a byte string."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


# The JSON text of a value whose digest `digest_json` returns; a digest of a list may so be made of texts of its elements.
json_text = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def digest_json(value: Any) -> str:
    """Return the digest of a JSON value, which does not depend on the order of keys."""
    return digest_bytes(json_text(value).encode())


class ArrayParts(NamedTuple):
    """An array in consecutive parts along its first dimension, which need not be in memory at the same time."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    parts: Callable[[], Iterable[np.ndarray[Any, Any]]]

    @classmethod
    def from_array(cls, array: np.ndarray[Any, Any], dtype: Any = None) -> ArrayParts:
        """Return an array in parts that are small enough to be copied, as if it had another type if one is given."""
        dtype = np.dtype(array.dtype if dtype is None else dtype)
        parts = range(0, len(array), _PART)
        return cls(dtype, array.shape, lambda: (array[at : at + _PART].astype(dtype, copy=False) for at in parts))


def digest_arrays(**arrays: np.ndarray[Any, Any]) -> str:
    """Return the digest of named arrays: their names, dtypes, shapes and little-endian contents."""
    contiguous = ((name, np.ascontiguousarray(array)) for name, array in arrays.items())
    return digest_parts({name: ArrayParts.from_array(array) for name, array in contiguous})


def digest_parts(arrays: Mapping[str, ArrayParts]) -> str:
    """Return the digest that `digest_arrays` gives for the joined arrays."""
    h = hashlib.blake2b(digest_size=16)
    for name, (dtype, shape, parts) in sorted(arrays.items()):
        little = dtype.newbyteorder("<")
        h.update(f"{name}:{little.str}:{shape};".encode())
        for part in parts():
            array = np.ascontiguousarray(part).astype(little, copy=False)
            h.update(array.data.cast("B") if array.size else b"")
    return h.hexdigest()


def fingerprint(f: io.BufferedReader, version: int | None) -> str:
    """Return the size and a digest of an open file, by which a changed file is recognised.

    Files up to 64 MiB are read completely; of larger ones 64 evenly spread blocks of 1 MiB, including the first
    and the last, so that a long film takes no more time than a short clip. Equal blocks do not make films equal, so that
    their `version`, such as the time of change, stands in the text too if there is one.
    """
    h, size = hashlib.blake2b(digest_size=16), f.seek(0, io.SEEK_END)
    f.seek(0)
    if size <= FULL_READ_LIMIT_BYTES:
        hashlib.file_digest(f, lambda: h)
        return f"{size:x}-{h.hexdigest()}"
    for offset in np.linspace(0, size - _BLOCK_BYTES, 64).astype(np.int64):
        f.seek(int(offset))
        h.update(f.read(_BLOCK_BYTES))
    told = "" if version is None else f"{version:x}-"
    return f"{size:x}-{told}{h.hexdigest()}"


NO_CONTENT = np.uint64(0)
# Of the digest in a fingerprint, of which two words tell contents apart as well as 64 bits can.
_DIGITS, _WORD_BYTES = 32, 8


def of_content(fingerprint: str) -> str:
    """Return a fingerprint, or "" for the text that stands for one where the content was not read, see `content_keys`."""
    return fingerprint if fingerprint[-_DIGITS - 1 : -_DIGITS] == "-" else ""


def content_keys(fingerprints: Any) -> U64:
    """Return a key for each content by an Arrow array of fingerprints, of large strings, without a Python object for each.

    It is `NO_CONTENT` where the content was not read: a trusted list states sizes and times, which make a shorter text, and a
    file that cannot be read has none.
    """
    _, offset_buffer, data_buffer = fingerprints.buffers()
    keys = np.full(len(fingerprints), NO_CONTENT)
    if not len(keys) or data_buffer is None or data_buffer.size < _DIGITS:
        return keys
    offsets = np.frombuffer(offset_buffer, dtype=np.int64)[fingerprints.offset :][: len(keys) + 1]
    at = np.flatnonzero(np.diff(offsets) > _DIGITS + 1)
    end = offsets[1:][at]
    is_digest = np.frombuffer(data_buffer, dtype=np.uint8)[end - _DIGITS - 1] == ord("-")
    at, end = at[is_digest], end[is_digest]
    at_each_byte = (data_buffer.size - _WORD_BYTES + 1,)
    words = np.ndarray(at_each_byte, dtype="<u8", buffer=data_buffer, strides=(1,))
    keys[at] = hash_rng.hash64(words[end - 2 * _WORD_BYTES], words[end - _WORD_BYTES])
    return keys


running = xxhash.xxh3_128


def of_bytes(data: Buffer) -> str:
    """Return the XXH3 checksum of bytes."""
    return running(data).hexdigest()


def of_file(path: Path) -> str:
    """Return the XXH3 checksum of a file."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, running).hexdigest()
