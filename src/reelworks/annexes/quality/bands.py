"""Candidates for near-duplicates: hashes of 63 bits that differ in few bits and mostly agree in a band of them, by sorting.

A hash, its band first, and the number of its clip are packed into one word, so that sorted words have such hashes beside each
other: memory and time grow with the number of clips and not with its square. Each is compared with the few that follow it.

Legend: N clips.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_BITS, _WORD_BITS = 63, 64
_LEAST, _MOST = 7, 21  # bits of a band, of which there are 9 to 3
_DIFFER = 18 / 56  # share of the bits outside the band in which candidates may differ
_NEIGHBOURS = 6  # following hashes that each is compared with
_BLOCK = 1 << 15  # words that are worked on at once, in the caches
_one_sorts = threading.Lock()

Hashes = NDArray[np.uint64]
Numbers = NDArray[np.int64]


class Band(NamedTuple):
    """Some consecutive bits of a hash."""

    shift: int
    bits: int

    def sorted_words(self, hashes_N: Hashes) -> Hashes:
        """Return the words of hashes in order."""
        words = np.empty_like(hashes_N)
        self._pack(hashes_N, 0, 0, words)
        return words

    def pairs(
        self, plain_N: Hashes, plain_words: Hashes, other_N: Hashes, turned: int = 0
    ) -> Iterator[tuple[Numbers, Numbers]]:
        """Yield numbers of clips and, for each, that of another clip whose other hash, with some bits turned, is like its own.

        Args:
            plain_words: What `sorted_words` returns of `plain_N`, which is compared several times.
        """
        count = len(plain_N)
        most = math.floor(_DIFFER * (_BITS - self.bits))
        with _one_sorts:  # of millions of clips, memory is for one such array at a time
            words = np.empty(2 * count, dtype=np.uint64)
            words[:count] = plain_words
            self._pack(other_N, turned, count, words[count:])
            words.sort(kind="stable")  # which merges what is in order
            words &= np.uint64((1 << _width(count)) - 1)
            numbers = words.astype(np.uint32)
            del words
        for begin in range(0, len(numbers) - 1, _BLOCK):
            number = numbers[begin : begin + _BLOCK + _NEIGHBOURS].astype(np.int64)
            is_other = number >= count
            hash_of = plain_N.take(number, mode="clip")
            hash_of[is_other] = other_N.take(number[is_other] - count) ^ np.uint64(turned)
            for step in range(1, min(_NEIGHBOURS + 1, len(number))):
                near = np.bitwise_count(hash_of[step:] ^ hash_of[:-step]) <= most
                near &= is_other[step:] != is_other[:-step]
                at = np.flatnonzero(near[:_BLOCK])
                first, second = number[at], number[at + step]
                some, others = np.minimum(first, second), np.maximum(first, second) - count
                yield some[some != others], others[some != others]

    def _pack(self, hashes_N: Hashes, turned: int, first: int, words: Hashes) -> None:
        """Write the words of hashes, with some bits turned, in order; their clips are numbered from `first` on."""
        number_bits = np.uint64((1 << _width(len(hashes_N))) - 1)
        for begin in range(0, len(hashes_N), _BLOCK):
            some = hashes_N[begin : begin + _BLOCK] ^ np.uint64(turned)
            word = some >> np.uint64(self.shift) << np.uint64(_WORD_BITS - self.bits)
            word |= some >> np.uint64(self.shift + self.bits) << np.uint64(self.shift + 1)
            word |= (some & np.uint64((1 << self.shift) - 1)) << np.uint64(1)
            word &= ~number_bits  # there is no room for all bits
            word |= np.arange(first + begin, first + begin + len(some), dtype=np.uint64)
            words[begin : begin + len(some)] = word
        words.sort()


def _width(count: int) -> int:
    """Return the number of bits of a word that number a clip, for each of the two hashes that are compared."""
    return (2 * count - 1).bit_length()


def bands_for(count: int) -> list[Band]:
    """Return the bands by which so many clips are compared: the more clips, the more bits."""
    bits = min(max(math.ceil(math.log2(count)), _LEAST), _MOST)
    return [Band(at * bits, bits) for at in range(_BITS // bits)]
