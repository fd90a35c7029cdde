"""Candidates for near-duplicates: hashes of 63 bits that agree in a band of bits and differ in few of the others, by sorting.

A hash, its band first, and the number of its clip are packed into one word, so that sorted words have such hashes beside each
other: memory and time grow with the number of clips and not with its square. In a crowded band each is paired with those that
follow it.

Legend: N clips.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_BITS, _WORD_BITS = 63, 64
_LEAST, _MOST = 7, 21  # bits of a band, of which there are 9 to 3
_DIFFER = 18 / 56  # share of the bits outside the band in which candidates may differ
_NEIGHBOURS = 6  # following hashes of the same band that each is paired with
_BLOCK = 1 << 15  # words that are worked on at once, in the caches

Hashes = NDArray[np.uint64]
Numbers = NDArray[np.int64]


class Band(NamedTuple):
    """Some consecutive bits of a hash."""

    shift: int
    bits: int

    def pairs(self, plain_N: Hashes, other_N: Hashes, turned: int = 0) -> Iterator[tuple[Numbers, Numbers]]:
        """Yield numbers of clips and, for each, that of another clip whose other hash, with some bits turned, is like its own."""
        side = (len(plain_N) - 1).bit_length()  # the bit above the number that tells which of the hashes it is
        outside = _BITS - self.bits
        dropped = max(_BITS + side + 1 - _WORD_BITS, 0)  # bits of the hash for which there is no room
        kept = outside - dropped
        words = np.empty(2 * len(plain_N), dtype=np.uint64)
        self._pack(plain_N, 0, 0, dropped, side, words[: len(plain_N)])
        self._pack(other_N, turned, 1 << side, dropped, side, words[len(plain_N) :])
        words.sort()
        most, most_kept = math.floor(_DIFFER * outside), math.ceil(_DIFFER * kept)
        number, other_side = np.uint64((1 << side) - 1), np.uint64(1 << side)
        for begin in range(0, len(words) - 1, _BLOCK):
            for step in range(1, _NEIGHBOURS + 1):
                second = words[begin + step : begin + step + _BLOCK]
                differ = words[begin : begin + len(second)] ^ second
                at = np.flatnonzero(differ < np.uint64(1 << side + 1 + kept))  # of the same band
                differ = differ[at]
                at = at[((differ & other_side) != 0) & (np.bitwise_count(differ >> np.uint64(side)) <= most_kept + 1)]
                first, second = words[begin + at], second[at]
                is_other = (first & other_side) != 0
                a, b = (first & number).view(np.int64), (second & number).view(np.int64)
                some, others = np.where(is_other, b, a), np.where(is_other, a, b)
                like = (np.bitwise_count(plain_N[some] ^ other_N[others] ^ np.uint64(turned)) <= most) & (
                    some != others
                )
                yield some[like], others[like]

    def _pack(self, hashes: Hashes, turned: int, first: int, dropped: int, side: int, words: Hashes) -> None:
        """Write the word of each hash: its band, its other bits as far as there is room, and its number, from `first` on."""
        for begin in range(0, len(hashes), _BLOCK):
            some = hashes[begin : begin + _BLOCK] ^ np.uint64(turned)
            in_order = some >> np.uint64(self.shift) << np.uint64(_WORD_BITS - self.bits) >> np.uint64(1)
            in_order |= some >> np.uint64(self.shift + self.bits) << np.uint64(self.shift)
            in_order |= some & np.uint64((1 << self.shift) - 1)
            numbers = np.arange(first + begin, first + begin + len(some), dtype=np.uint64)
            words[begin : begin + len(some)] = in_order >> np.uint64(dropped) << np.uint64(side + 1) | numbers


def bands_for(count: int) -> list[Band]:
    """Return the bands by which so many clips are compared: the more clips, the more bits."""
    bits = min(max(math.ceil(math.log2(count)), _LEAST), _MOST)
    return [Band(at * bits, bits) for at in range(_BITS // bits)]
