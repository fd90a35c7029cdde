"""Near-duplicates: clips that show the same after re-encoding, resizing, a small crop, mirroring or with a logo.

Of each clip two frames are kept: 16 × 16 px of their luma, and the colours of 4 × 4 parts. Candidates are pairs whose perceptual hashes (signs of the lowest 64
coefficients of the cosine transform) agree in a band of bits, for the frame as it is, mirrored, and with parts of its margin
cut away. A pair counts as duplicates if the frames, with equal weight for coarse and fine structure, correlate, and their colours and contrast are about the same.

Legend: N clips, P pairs, K coefficients along one axis, X pixels along one axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from reelworks.annexes.quality import duplicate_groups
from reelworks.annexes.quality.duplicate_groups import Pairs
from reelworks.annexes.quality.measure import ComparedClips, SampledClip, Still
from reelworks.annexes.quality.picture import Sharpness
from reelworks.core import blocks
from reelworks.data.catalog.store import measured_columns

_X = 16
_C = 4  # parts along each side whose colour is kept
_FRAME_BYTES = _X * _X + 2 * _C * _C
LEAST_DEVIATION = 8.0  # levels; a frame that is nearly even has no structure to recognise
_HASHED, _COMPARED = 8, 12  # coefficients along each axis
_NEIGHBOURS = 6  # following clips of the same band that a clip is paired with
_PAIRS = 1 << 13  # that are compared at once, in the caches
_FRAMES = 1 << 16  # that are hashed at once
_CHROMA_LEVELS, _CHROMA_SHARE = 2.0, 0.35  # mean levels, and share of all chroma, by which the colours of copies differ
_MOST_CONTRAST = 1.6  # times by which their contrast does
_MOST_BITS = 18  # of 63 in which the hashes of a pair may differ
_LIKELY, _ALIKE = 0.6, 0.82  # correlations for a part that may be a little off, and for one that fits


def _cosines(count: int) -> NDArray[np.float32]:
    """Return the cosine transform (DCT-II) of `_X` values as a matrix `[K, X]`."""
    k, x = np.arange(count)[:, None], np.arange(_X)[None]
    matrix: NDArray[np.float32] = (np.cos(math.pi * k * (2 * x + 1) / (2 * _X))).astype(np.float32)
    return matrix


def _resampled(start: float, end: float) -> NDArray[np.float32]:
    """Return the matrix `[X, X]` that cuts a part of `_X` values out and stretches it to all of them."""
    at = np.clip((start + (np.arange(_X) + 0.5) / _X * (end - start)) * _X - 0.5, 0, _X - 1)
    low = np.minimum(at.astype(np.int64), _X - 2)
    share = (at - low).astype(np.float32)
    matrix = np.zeros((_X, _X), dtype=np.float32)
    matrix[np.arange(_X), low] = 1 - share
    matrix[np.arange(_X), low + 1] = share
    return matrix


# Signs of a hash that mirroring turns.
_MIRRORED_BITS = np.packbits(np.tile(np.arange(_HASHED) % 2 == 1, _HASHED)).view(">u8")[0].astype(np.uint64)
# Parts of the height or width that a copy may show: all, or without 3 % or 6 % at the beginning, the end or both.
_SPANS = [(0.0, 1.0)] + [
    (a, 1 - b) for cut in (0.03, 0.06) for a, b in ((cut, 0), (0, cut), (cut, cut), (cut / 2, cut / 2))
]
_COARSE = [(0.0, 1.0), (0.04, 1.0), (0.0, 0.96), (0.03, 0.97)]


@final
class Duplicates:
    """Groups of near-duplicates over the whole catalog, and the rank of each clip in its group: the largest, then the sharpest.

    A group keeps its number while clips come and go. With more than 100,000 clips, some pairs of strongly changed copies are no
    candidates any more, since bands of more bits are compared.
    """

    name, version, columns, reads = "duplicates", 2, measured_columns.BUILT_IN["duplicates"], ("stills",)

    feature_bytes = 2 * _FRAME_BYTES + duplicate_groups.SHARPNESS_BYTES

    def __init__(self) -> None:
        self._sharpness = Sharpness()

    def features(self, clip: SampledClip) -> bytes:
        """Return two frames of a clip, at about a third and two thirds of it, and its sharpness."""
        stills = (clip.stills[0], clip.stills[-1])
        frames = [part for still in stills for part in (self._small(still), _colours(still))]
        sharpness = self._sharpness.of_frame(clip.stills[len(clip.stills) // 2])
        return b"".join(frame.tobytes() for frame in frames) + duplicate_groups.sharpness_bytes(sharpness)

    @staticmethod
    def _small(still: Still) -> NDArray[np.uint8]:
        return np.asarray(still.luma_picture.resize((_X, _X), Image.Resampling.BOX, box=still.box))

    def compare(self, clips: ComparedClips) -> NDArray[np.float64]:
        """Return the number of each clip's group, NaN for a clip alone, and its rank."""
        seen = clips.features[:, : 2 * _FRAME_BYTES].reshape(-1, 2, _FRAME_BYTES)
        frames = seen[..., : _X * _X].reshape(-1, 2, _X, _X)
        colours, contrast = seen[..., _X * _X :].reshape(-1, 2, _C, _C, 2), _deviations(frames)
        pairs = near_duplicates(frames, contrast)
        pairs = pairs[_in_parts(pairs, lambda some: _same_light(colours, contrast.mean(axis=1), some))]
        label = blocks.components(len(frames), pairs)
        return duplicate_groups.values(clips, label, duplicate_groups.best_first(clips))


def _colours(still: Still) -> NDArray[np.uint8]:
    """Return the mean Cb and Cr of the parts of a frame, `[C, C, 2]`."""
    pixels = still.rgb[still.active]
    every = max(min(pixels.shape[:2]) // 64, 1)
    few = Image.fromarray(np.ascontiguousarray(pixels[::every, ::every])).convert("YCbCr")
    return np.asarray(few.resize((_C, _C), Image.Resampling.BOX))[..., 1:]


def _deviations(frames_N2XX: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the deviation of the luma of each frame, `[N, 2]`, with memory for a part of them at a time."""
    found = np.empty(frames_N2XX.shape[:2], dtype=np.float32)
    for at in range(0, len(found), _FRAMES):
        frames_N2XX[at : at + _FRAMES].std(axis=(2, 3), dtype=np.float32, out=found[at : at + _FRAMES])
    return found


def _in_parts(pairs: Pairs, test: Callable[[Pairs], NDArray[np.bool_]]) -> NDArray[np.bool_]:
    """Return which pairs pass a test that looks at a few thousand at a time."""
    parts = [test(pairs[at : at + _PAIRS]) for at in range(0, len(pairs), _PAIRS)]
    return np.concatenate([np.zeros(0, dtype=np.bool_), *parts])


def _same_light(colours_N2CC2: NDArray[np.uint8], contrast_N: NDArray[np.float32], pairs: Pairs) -> NDArray[np.bool_]:
    """Return which pairs have about the same colours and contrast, which their structure does not tell."""
    a, b = (colours_N2CC2[pairs[:, side]].astype(np.float32) - 128 for side in (0, 1))  # 128 is grey
    differ = np.minimum(*(np.abs(a - other).mean(axis=(1, 2, 3, 4)) for other in (b, b[..., ::-1, :])))
    strength = (np.abs(a) + np.abs(b)).mean(axis=(1, 2, 3, 4)) / 2
    ratio = np.maximum(contrast_N[pairs[:, 0]], 1) / np.maximum(contrast_N[pairs[:, 1]], 1)
    close = (ratio < _MOST_CONTRAST) & (ratio > 1 / _MOST_CONTRAST)
    return np.asarray((differ <= _CHROMA_LEVELS + _CHROMA_SHARE * strength) & close)


def near_duplicates(frames_N2XX: NDArray[np.uint8], contrast_N2: NDArray[np.float32]) -> Pairs:
    """Return the pairs of clips that show nearly the same."""
    usable = np.flatnonzero((contrast_N2 >= LEAST_DEVIATION).any(axis=1))
    frames = frames_N2XX[usable]
    if len(frames) < 2:
        return np.zeros((0, 2), dtype=np.int64)
    found = np.zeros(0, dtype=np.int64)
    for some in _candidates(frames):
        found = np.union1d(found, _coded(np.sort(some, axis=1), len(frames)))
    pairs: Pairs = np.stack(np.divmod(found, len(frames)), axis=1)
    return usable[pairs[_in_parts(pairs, lambda some: _alike(frames, some))]]


def _hashes(
    frames_NXX: NDArray[np.uint8], rows: NDArray[np.float32], columns: NDArray[np.float32]
) -> NDArray[np.uint64]:
    """Return the hash of a part of each frame, cut out by matrices of `_resampled`."""
    down, across = _cosines(_HASHED) @ rows, _cosines(_HASHED) @ columns
    hashes = np.empty(len(frames_NXX), dtype=np.uint64)
    for at in range(0, len(hashes), _FRAMES):
        found = down @ frames_NXX[at : at + _FRAMES].astype(np.float32) @ across.T
        bits = found.reshape(-1, _HASHED * _HASHED) > 0
        bits[:, 0] = False  # the mean
        hashes[at : at + _FRAMES] = np.packbits(bits, axis=1).view(">u8")[:, 0]
    return hashes


def _coded(pairs: Pairs, count: int) -> NDArray[np.int64]:
    """Return each pair once, as a number."""
    return np.unique(pairs[:, 0] * count + pairs[:, 1])


def _candidates(frames_N2XX: NDArray[np.uint8]) -> Iterator[Pairs]:
    """Yield the pairs of clips that look alike in a part of the frame, by their hashes and then by that part."""
    count = len(frames_N2XX)
    bits = min(max(math.ceil(math.log2(count)), 7), 21)
    whole, cosines = _resampled(0, 1), _cosines(_COMPARED)
    plain = [_hashes(frames_N2XX[:, frame], whole, whole) for frame in range(2)]
    for down in _COARSE:
        for across in _COARSE:
            part = _resampled(*down), _resampled(*across)
            found = []
            for frame in range(2):
                cut = _hashes(frames_N2XX[:, frame], *part)
                for other in (cut, cut ^ _MIRRORED_BITS):
                    found += [_in_band(plain[frame], other, at * bits, (1 << bits) - 1) for at in range(63 // bits)]
            pairs = np.stack(np.divmod(_coded(np.concatenate(found), count), count), axis=1)
            for begin in range(0, len(pairs), _PAIRS):
                some = pairs[begin : begin + _PAIRS]
                a, b = (frames_N2XX[some[:, side]].astype(np.float32) for side in (0, 1))
                parts = (cosines @ part[0]) @ b @ (cosines @ part[1]).T
                yield some[_correlation(_unit(cosines @ a @ cosines.T), _unit(parts)) >= _LIKELY]


def _in_band(plain: NDArray[np.uint64], other: NDArray[np.uint64], shift: int, mask: int) -> Pairs:
    """Return pairs of a clip and another form of a clip, in this order, that agree in a band."""
    count, found = len(plain), [np.zeros((0, 2), dtype=np.int64)]
    both = np.concatenate([plain, other])
    key = (both >> np.uint64(shift)) & np.uint64(mask)
    order = np.lexsort((both, key))
    key, at, is_other = key[order], order % count, order >= count
    for step in range(1, _NEIGHBOURS + 1):
        joined = (key[step:] == key[:-step]) & (is_other[step:] != is_other[:-step]) & (at[step:] != at[:-step])
        pairs = np.stack([order[:-step][joined], order[step:][joined]], axis=1)
        pairs = np.sort(pairs, axis=1)  # the other form has the larger number
        near = np.bitwise_count(both[pairs[:, 0]] ^ both[pairs[:, 1]]) <= _MOST_BITS
        found.append(pairs[near] % count)
    return np.concatenate(found)


def _alike(frames_N2XX: NDArray[np.uint8], pairs: Pairs) -> NDArray[np.bool_]:
    """Return which pairs show the same: one of them may show a part of the other, or be its mirror image."""
    alike = np.zeros(len(pairs), dtype=np.bool_)
    spans = [_cosines(_COMPARED) @ _resampled(*span) for span in _SPANS]
    for down in spans:
        for first, second in ((0, 1), (1, 0)):
            left = np.flatnonzero(~alike)  # most are found at once, without a crop
            a, b = (frames_N2XX[pairs[left, side]].astype(np.float32) for side in (first, second))
            whole, rows = _unit(spans[0] @ b @ spans[0].T), down @ a
            best = np.full(len(left), -1.0, dtype=np.float32)
            for across in spans:
                best = np.maximum(best, _correlation(_unit(rows @ across.T), whole))
            alike[left] = best >= _ALIKE
    return alike


def _correlation(a_P2KK: NDArray[np.float32], b_P2KK: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the correlation of two clips, or of one with the mirror image of the other if that is larger."""
    products = a_P2KK * b_P2KK
    odd: NDArray[np.float32] = np.abs(products[..., 1::2].sum(axis=(1, 2, 3)))  # the signs that mirroring turns
    result: NDArray[np.float32] = products[..., ::2].sum(axis=(1, 2, 3)) + odd
    return result


def _unit(found_P2KK: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the coefficients of both frames as one vector of length 1, without the mean.

    They weigh more the finer they are, as those of natural pictures fall off.
    """
    weighted = found_P2KK * _WEIGHTS
    length = np.sqrt(np.square(weighted).sum(axis=(1, 2, 3), keepdims=True))
    unit: NDArray[np.float32] = weighted / np.maximum(length, 1e-6)
    return unit


_WEIGHTS = np.sqrt(np.hypot(np.arange(_COMPARED)[:, None], np.arange(_COMPARED)[None])).astype(np.float32)
