"""Keys of contents, made from fingerprints of files without a Python object for each of ten million."""

from __future__ import annotations

from typing import Any

import numpy as np

from reelworks.core.hash_rng import U64, hash64

UNKNOWN = np.uint64(0)
_DIGITS = 32  # of the digest at the end of a fingerprint, see `digests.fingerprint`
_WORD = 8  # bytes, two of which tell contents apart as well as 64 bits can


def keys(fingerprint: Any) -> U64:
    """Return a key for each content, by an Arrow array of fingerprints as rows have it.

    It is `UNKNOWN` where the content was not read: a trusted list states sizes and times, which make a shorter text, and a
    file that cannot be read has none.
    """
    _, offset_buffer, data_buffer = fingerprint.buffers()
    result = np.full(len(fingerprint), UNKNOWN)
    if not len(fingerprint) or data_buffer is None or data_buffer.size < _DIGITS:
        return result
    offsets = np.frombuffer(offset_buffer, dtype=np.int64)[fingerprint.offset :][: len(fingerprint) + 1]
    data = np.frombuffer(data_buffer, dtype=np.uint8)
    at = np.flatnonzero(np.diff(offsets) > _DIGITS + 1)
    end = offsets[1:][at]
    is_digest = data[end - _DIGITS - 1] == ord("-")
    at, end = at[is_digest], end[is_digest]
    words = np.ndarray(len(data) - _WORD + 1, dtype="<u8", buffer=data_buffer, strides=(1,))  # one at each byte
    result[at] = hash64(words[end - 2 * _WORD], words[end - _WORD])
    return result
