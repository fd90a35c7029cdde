"""Near-duplicates by embeddings of a network: what hashes do not find, such as large crops, other colours, and text upon the picture.

Of each clip a vector of 512 bytes is kept, whatever the network: a random projection of the embeddings of two frames, each
with its mirror image, which keeps cosines (Johnson and Lindenstrauss 1984; at 0.95 within about 0.004). Candidates are clips that are
neighbours when all are sorted by some of the signs of their vectors, in several orders of these signs (Charikar 2002), so that
memory and time grow with the number of clips and not with its square; then cosines are computed.

Legend: N clips, D features of the network, K features that are kept, P pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelworks.annexes.quality import duplicate_groups
from reelworks.annexes.quality.duplicate_groups import SHARPNESS_BYTES, Pairs
from reelworks.annexes.quality.measure import ComparedClips
from reelworks.core import hash_rng

_K = 512
FEATURE_BYTES = _K + SHARPNESS_BYTES
# Training data is deduplicated by CLIP at 0.95 to 0.99; below, other shots of the same place are found too. It is the least
# of these since crops and other colours are sought, and hashes find the copies that are closer.
LEAST_COSINE = 0.95
_ORDERS = 48  # in which clips are sorted
_NEIGHBOURS = 6  # following clips that each is paired with
# Shares of the signs in which candidates may differ: 0.2 do if the cosine without the mean is 0.8, as that of copies in CLIP,
# and 0.5 if clips have nothing in common.
_MOST_OF_64, _MOST_OF_ALL = 18 / 64, 0.25
_CLIPS, _PAIRS = 1 << 14, 1 << 14  # that are worked on at once, in the caches


def packed(embeddings_N2D: NDArray[np.floating[Any]], sharpness: list[float]) -> NDArray[np.uint8]:
    """Return the features of clips, `[N, FEATURE_BYTES]`, from the embeddings of two frames of each; those of 0 are like no others."""
    count, frames, width = embeddings_N2D.shape
    flat = embeddings_N2D.reshape(count, frames * width).astype(np.float32)
    # The random projection `[frames * width, K]` is the same everywhere (Achlioptas 2003: signs are enough).
    words = hash_rng.hash64(np.arange(frames * width * _K // 64, dtype=np.uint64), "projection")
    bits = np.unpackbits(words.astype("<u8").view(np.uint8)).reshape(frames * width, _K)
    vectors = flat @ (bits.astype(np.float32) * 2 - 1)
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    levels = np.round(vectors / np.maximum(largest, 1e-30) * 127).astype(np.int8)
    ends = np.frombuffer(b"".join(map(duplicate_groups.sharpness_bytes, sharpness)), dtype=np.uint8)
    return np.concatenate([levels.view(np.uint8), ends.reshape(-1, SHARPNESS_BYTES)], axis=1)


def compare(clips: ComparedClips) -> NDArray[np.float64]:
    """Return the number of each clip's group, NaN for a clip alone, and its rank.

    Each clip of a group is like the best one itself, and not only like another one that is: chains of clips would join all
    the footage of a place.
    """
    vectors = clips.features[:, :_K].view(np.int8)
    best = duplicate_groups.best_first(clips)
    label = _like_the_best(vectors, near_duplicates(vectors), best)
    return duplicate_groups.values(clips, label, best)


def near_duplicates(vectors_NK: NDArray[np.int8]) -> Pairs:
    """Return pairs of clips with nearly the same direction; of many that are alike each is paired with some."""
    usable = np.flatnonzero(vectors_NK.any(axis=1))
    signs, count = _packed_signs(vectors_NK, usable), len(usable)
    found = np.zeros(0, dtype=np.int64)
    for order in range(_ORDERS):
        for low, high in _neighbours(signs, order):
            new = np.setdiff1d(np.minimum(low, high) * count + np.maximum(low, high), found)
            some = usable[np.stack(np.divmod(new, count), axis=1)]
            found = np.union1d(found, new[_cosines(vectors_NK, some) >= LEAST_COSINE])
    return np.asarray(usable[np.stack(np.divmod(found, max(count, 1)), axis=1)])


def _packed_signs(vectors_NK: NDArray[np.int8], usable: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the signs of vectors beside their mean, which all pictures share in CLIP, `[N, K / 64]`."""
    parts = [usable[begin : begin + _CLIPS] for begin in range(0, len(usable), _CLIPS)]
    mean = sum((_unit(vectors_NK[part]).sum(axis=0) for part in parts), np.zeros(_K)) / max(len(usable), 1)
    signs = [np.packbits(_unit(vectors_NK[part]) > mean, axis=1).view(np.uint64) for part in parts]
    return np.concatenate([np.zeros((0, _K // 64), dtype=np.uint64), *signs])


def _neighbours(signs: NDArray[np.uint64], order: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield pairs of clips, as two arrays, that are neighbours in an order and differ in few signs."""
    chosen = np.argsort(hash_rng.hash64(np.arange(_K // 8), order, "order"))[:8]
    key = np.ascontiguousarray(signs.view(np.uint8)[:, chosen]).view(np.uint64)[:, 0]
    at = np.argsort(key)
    key = key[at]
    for step in range(1, _NEIGHBOURS + 1):
        near = np.flatnonzero(np.bitwise_count(key[step:] ^ key[:-step]) <= 64 * _MOST_OF_64)
        low, high = at[near], at[near + step]
        differ = [
            np.bitwise_count(signs[low[begin : begin + _PAIRS]] ^ signs[high[begin : begin + _PAIRS]]).sum(axis=1)
            for begin in range(0, len(near), _PAIRS)
        ]
        close = np.concatenate([np.zeros(0), *differ]) <= _K * _MOST_OF_ALL
        yield low[close], high[close]


def _unit(vectors_NK: NDArray[np.int8]) -> NDArray[np.float32]:
    vectors = vectors_NK.astype(np.float32)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def _cosines(vectors_NK: NDArray[np.int8], pairs: Pairs) -> NDArray[np.float32]:
    found = np.empty(len(pairs), dtype=np.float32)
    for begin in range(0, len(pairs), _PAIRS):
        some = slice(begin, begin + _PAIRS)
        a, b = (_unit(vectors_NK[pairs[some, side]]) for side in (0, 1))
        found[some] = np.einsum("nk,nk->n", a, b)
    return found


def _like_the_best(vectors_NK: NDArray[np.int8], pairs: Pairs, best: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each clip the best of its group, whose members pairs connect with it and which are like it themselves."""
    label, count = np.arange(len(vectors_NK)), len(vectors_NK)
    both = np.concatenate([pairs, pairs[:, ::-1]])
    both = both[np.argsort(both[:, 0], kind="stable")]
    start = np.searchsorted(both[:, 0], np.arange(count + 1))
    paired, free = np.diff(start) > 0, np.ones(count, dtype=np.bool_)
    for head in best[paired[best]].tolist():
        if not free[head]:
            continue
        free[head], reached = False, [head]
        while reached:
            near = np.unique(np.concatenate([both[start[i] : start[i + 1], 1] for i in reached]))
            near = near[free[near]]
            alike = near[_cosines(vectors_NK, np.stack([np.full(len(near), head), near], axis=1)) >= LEAST_COSINE]
            free[alike], label[alike], reached = False, head, alike.tolist()
    return label
