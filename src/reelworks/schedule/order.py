"""Order of an epoch's clips, by bucket and then by hash, computed with a single sort of integers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from reelworks.core import hash_rng
from reelworks.core.hash_rng import Purpose

I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]

# Number of clips hashed at a time; small enough that intermediate results stay in the processor's cache.
_BLOCK = 1 << 15


def by_bucket_and_hash(uid: U64, copy: I64, bucket: I64, *, seed: int, epoch: int) -> I64:
    """Return the indices of the clips in the order of `(bucket, upper 48 bits of the hash, uid, copy)`.

    One 64-bit word holds the bucket, as many bits of the hash as fit, and the index; sorting these words as
    values is about twice as fast as an argsort. The few neighbours that differ in the index alone are sorted by
    the complete key afterwards, so the order of the input never matters.
    """
    place_bits = _bits(len(uid))
    hash_bits = min(64 - place_bits - _bits(int(bucket.max(initial=0)) + 1), 48)
    words = np.empty(len(uid), dtype=np.uint64)
    for first in range(0, len(uid), _BLOCK):
        where = slice(first, first + _BLOCK)
        hashed = hash_rng.hash64(seed, epoch, uid[where], copy[where], Purpose.SHUFFLE)
        key = (bucket[where].astype(np.uint64) << np.uint64(hash_bits)) | (hashed >> np.uint64(64 - hash_bits))
        place = np.arange(first, first + len(key), dtype=np.uint64)
        words[where] = (key << np.uint64(place_bits)) | place
    words.sort()
    tied = _tied(words, np.uint64(place_bits))
    words &= np.uint64((1 << place_bits) - 1)
    order = words.view(np.int64)
    _settle(order, tied, uid, copy, bucket, seed, epoch)
    return order


def _bits(values: int) -> int:
    """Return the bits that `values` distinct values need; at least one, since a shift by 64 bits is undefined."""
    return max((values - 1).bit_length(), 1)


def _tied(words: U64, place_bits: np.uint64) -> I64:
    """Return the positions of sorted words that differ from a neighbour in the place alone."""
    tied = np.zeros(len(words), dtype=np.bool_)
    for first in range(0, len(words) - 1, _BLOCK):
        block = words[first : first + _BLOCK + 1] >> place_bits
        same = block[1:] == block[:-1]
        tied[first : first + len(same)] |= same
        tied[first + 1 : first + 1 + len(same)] |= same
    return np.flatnonzero(tied)


def _settle(order: I64, tied: I64, uid: U64, copy: I64, bucket: I64, seed: int, epoch: int) -> None:
    """Sort tied words by the complete key; each group keeps its positions, since bucket and hash begin alike."""
    at = order[tied]
    hashed = hash_rng.hash64(seed, epoch, uid[at], copy[at], Purpose.SHUFFLE) >> np.uint64(16)
    order[tied] = at[np.lexsort((copy[at], uid[at], hashed, bucket[at]))]
