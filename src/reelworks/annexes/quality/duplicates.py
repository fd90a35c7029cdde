"""Near-duplicates: clips that show the same after re-encoding, resizing, a small crop, mirroring or with a logo.

Of each clip two frames are kept: 16 × 16 px of their luma, and the colours of 4 × 4 parts. Candidates are pairs whose perceptual hashes (signs of the lowest 64
coefficients of the cosine transform) agree in a band of bits, for the frame as it is, mirrored, and with parts of its margin
cut away. A pair counts as duplicates if the frames, with equal weight for coarse and fine structure, correlate, and their colours and contrast are about the same.

Legend: N clips, P pairs, K coefficients along one axis, X pixels along one axis, S stacks of H clips, W widths, M all their
coefficients.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from reelworks.annexes.quality import bands, duplicate_groups
from reelworks.annexes.quality.bands import Numbers
from reelworks.annexes.quality.duplicate_groups import Pairs
from reelworks.annexes.quality.measure import ComparedClips, SampledClip, Still
from reelworks.annexes.quality.picture import Sharpness
from reelworks.core import blocks, machine
from reelworks.data.catalog.store import measured_columns

_X = 16
_C = 4  # parts along each side whose colour is kept
_FRAME_BYTES = _X * _X + 2 * _C * _C
_LEAST_DEVIATION = 2.0  # levels; below, coding is as strong as what is to be recognised
_HASHED, _COMPARED = 8, 12  # coefficients along each axis
_PAIRS = 1 << 13  # that are compared at once, in the caches
_FRAMES = 1 << 13  # whose contrast is taken at once
_HASHED_AT_ONCE = 1 << 10  # clips
_IN_PRODUCT = 1 << 5  # clips in one product of matrices, so small that BLAS starts no threads beside ours
_CHROMA_LEVELS, _CHROMA_SHARE = 2.0, 0.35  # mean levels, and share of all chroma, by which the colours of copies differ
_MOST_CONTRAST = 1.6  # times by which their contrast does
_ROUNDING = 0.01  # levels by which means of single precision may be off
_LIKELY, _ALIKE = 0.6, 0.82  # correlations for a part that may be a little off, and for one that fits


_Span: TypeAlias = tuple[float, float]  # begin and end of a part of the height or width


def _cosines(count: int) -> NDArray[np.float32]:
    """Return the cosine transform (DCT-II) of `_X` values as a matrix `[K, X]`."""
    k, x = np.arange(count)[:, None], np.arange(_X)[None]
    return np.cos(math.pi * k * (2 * x + 1) / (2 * _X)).astype(np.float32)


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
_MIRRORED_BITS: int = np.packbits(np.tile(np.arange(_HASHED) % 2 == 1, _HASHED)).view(">u8")[0].item()
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

    name, version, columns, reads = "duplicates", 3, measured_columns.BUILT_IN["duplicates"], ("stills",)

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
        pairs = near_duplicates(frames, seen[..., _X * _X :].reshape(-1, 2, _C, _C, 2))
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


class _Light:
    """Colours and contrast of clips, which their structure does not tell."""

    def __init__(self, colours_N2CC2: NDArray[np.uint8], contrast_N2: NDArray[np.float32]) -> None:
        self._colours = colours_N2CC2
        # Contrast, mean Cb and Cr, and mean distance from grey: a few bytes that tell most pairs apart.
        self._means_N4 = np.empty((len(contrast_N2), 4), dtype=np.float32)
        self._means_N4[:, 0] = np.maximum(contrast_N2.mean(axis=1), 1)
        for at in range(0, len(contrast_N2), _FRAMES):
            chroma = self._chroma(slice(at, at + _FRAMES))
            self._means_N4[at : at + _FRAMES, 1:3] = chroma.mean(axis=(1, 2, 3))
            self._means_N4[at : at + _FRAMES, 3] = np.abs(chroma).mean(axis=(1, 2, 3, 4))

    def _chroma(self, where: Any) -> NDArray[np.float32]:
        return np.asarray(self._colours[where].astype(np.float32) - 128)  # which is grey

    def may_agree(self, some: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which pairs have about the same contrast and mean colours, as all have that agree."""
        # Each row is one complex number, which numpy looks up at once.
        a, b = (
            self._means_N4.view(np.complex128)[:, 0].take(i).view(np.float32).reshape(-1, 4).T for i in (some, others)
        )
        close = (a[0] < _MOST_CONTRAST * b[0]) & (b[0] < _MOST_CONTRAST * a[0])
        differ = (np.abs(a[1] - b[1]) + np.abs(a[2] - b[2])) / 2
        return np.asarray(close & (differ <= _CHROMA_LEVELS + _CHROMA_SHARE * (a[3] + b[3]) / 2 + _ROUNDING))

    def agree(self, pairs: Pairs) -> NDArray[np.bool_]:
        """Return which pairs, of those that may, have about the same colours in each part of the frame, mirrored or not."""
        a, b = (self._chroma(pairs[:, side]) for side in (0, 1))
        differ = np.minimum(*(np.abs(a - other).mean(axis=(1, 2, 3, 4)) for other in (b, b[..., ::-1, :])))
        return np.asarray(differ <= _CHROMA_LEVELS + _CHROMA_SHARE * self._means_N4[pairs, 3].mean(axis=1))


def near_duplicates(frames_N2XX: NDArray[np.uint8], colours_N2CC2: NDArray[np.uint8]) -> Pairs:
    """Return the pairs of clips that show nearly the same."""
    contrast = _deviations(frames_N2XX)
    usable = np.flatnonzero((contrast >= _LEAST_DEVIATION).any(axis=1))
    if len(usable) < 2:
        return np.zeros((0, 2), dtype=np.int64)
    search = _Search(frames_N2XX, _Light(colours_N2CC2, contrast), usable)
    del contrast
    with ThreadPoolExecutor(machine.cores()) as threads:  # numpy computes without Python's lock
        search.run(threads)
        pairs = search.pairs()
        alike = [*threads.map(partial(_alike, frames_N2XX), _parts(pairs))]
    return np.asarray(pairs[np.concatenate([np.zeros(0, dtype=np.bool_), *alike])])


def _parts(pairs: Pairs) -> Iterator[Pairs]:
    """Yield pairs a few thousand at a time."""
    yield from (pairs[at : at + _PAIRS] for at in range(0, len(pairs), _PAIRS))


@dataclass
class _Search:
    """Search for pairs of clips that look alike in a part of the frame.

    Attributes:
        usable: Numbers of the clips that have structure; there are U of them.
        found: The pairs found so far, as numbers in order.
    """

    frames: NDArray[np.uint8]  # `[N, 2, X, X]`
    light: _Light
    usable: NDArray[np.int64]
    found: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def pairs(self) -> Pairs:
        """Return the pairs found so far."""
        return np.asarray(self.usable[np.stack(np.divmod(self.found, max(len(self.usable), 1)), axis=1)])

    def run(self, threads: ThreadPoolExecutor) -> None:
        """Compare each clip with parts of the frames of all others, and with their mirror images."""
        for frame in range(2):
            plain = self._hashes(frame, _COARSE[0], _COARSE[:1], threads)[0]
            words = {band: band.sorted_words(plain) for band in bands.bands_for(len(self.usable))}
            # Hashes of all widths at once would take twice the memory.
            for down, widths in itertools.product(_COARSE, (_COARSE[:2], _COARSE[2:])):
                cut = self._hashes(frame, down, widths, threads)
                jobs = [*itertools.product(zip(widths, cut, strict=True), (0, _MIRRORED_BITS), words.items())]
                candidates = (
                    band.pairs(plain, in_order, hashes, turned) for (_, hashes), turned, (band, in_order) in jobs
                )
                for new in threads.map(partial(self.likely, down), [job[0][0] for job in jobs], candidates):
                    self.found = np.sort(np.concatenate([self.found, new[blocks.find(self.found, new) < 0]]))

    def _hashes(
        self, frame: int, down: _Span, all_across: Sequence[_Span], threads: ThreadPoolExecutor
    ) -> NDArray[np.uint64]:
        """Return the hashes of parts of a frame, those of one height and some widths, `[W, U]`."""
        found = np.empty((len(all_across), len(self.usable)), dtype=np.uint64)
        rows = _cosines(_HASHED) @ _resampled(*down)
        columns_XM = np.concatenate([_cosines(_HASHED) @ _resampled(*across) for across in all_across]).T.copy()

        def fill(at: int) -> None:
            some = self.usable.take(np.arange(at, at + _HASHED_AT_ONCE), mode="clip")
            pixels_SHXX = self.frames[some, frame].reshape(-1, _IN_PRODUCT, _X, _X)
            lines = np.moveaxis(pixels_SHXX, 2, 1).astype(np.float32, order="C").reshape(-1, _X * _IN_PRODUCT, _X)
            signs = (rows @ (lines @ columns_XM).reshape(len(lines), _X, -1)) > 0
            signs = signs.reshape(-1, _HASHED, _IN_PRODUCT, len(found), _HASHED)
            signs[:, 0, ..., 0] = False  # the mean
            bits_SKHW = np.packbits(signs.ravel()).reshape(signs.shape[:-1])
            hashes = bits_SKHW.transpose(3, 0, 2, 1).copy().view(">u8").reshape(len(found), -1)
            found[:, at : at + _HASHED_AT_ONCE] = hashes[:, : found.shape[1] - at]

        for _ in threads.map(fill, range(0, len(self.usable), _HASHED_AT_ONCE)):
            pass
        return found

    def likely(self, down: _Span, across: _Span, candidates: Iterable[tuple[Numbers, Numbers]]) -> NDArray[np.int64]:
        """Return the candidates that look alike where others show a part of the first, as numbers in order, without those found."""
        count, light = len(self.usable), [np.zeros(0, dtype=np.int64)]
        for some, others in candidates:
            may = self.light.may_agree(self.usable[some], self.usable[others])
            a, b = some[may], others[may]
            # A pair is one number, whose last bit tells which of the two shows a part of the other.
            light.append((np.minimum(a, b) * count + np.maximum(a, b)) * 2 + (a > b))
        keys = np.concatenate(light)
        del light
        keys.sort()
        keys = keys[(np.diff(keys >> 1, prepend=-1) != 0) & (blocks.find(self.found, keys >> 1) < 0)]
        pairs = self.usable[np.stack(np.divmod(keys >> 1, count), axis=1)]
        pairs[keys & 1 == 1] = pairs[keys & 1 == 1, ::-1]
        spans = _cosines(_COMPARED) @ _resampled(*down), _cosines(_COMPARED) @ _resampled(*across)
        alike = [self.light.agree(some) & self._correlate(some, *spans) for some in _parts(pairs)]
        alike.append(np.zeros(0, dtype=np.bool_))  # there may be no pairs
        return np.asarray(keys[np.concatenate(alike)] >> 1)

    def _correlate(self, pairs: Pairs, rows: NDArray[np.float32], columns: NDArray[np.float32]) -> NDArray[np.bool_]:
        whole: NDArray[np.float32] = _cosines(_COMPARED)
        a, b = (
            _unit(down @ self.frames[pairs[:, side]].astype(np.float32) @ across.T)
            for side, (down, across) in enumerate(((whole, whole), (rows, columns)))
        )
        return np.asarray(_correlation(a, b) >= _LIKELY)


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
    return np.asarray(products[..., ::2].sum(axis=(1, 2, 3)) + odd)


def _unit(found_P2KK: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the coefficients of both frames as one vector of length 1, without the mean.

    They weigh more the finer they are, as those of natural pictures fall off.
    """
    weighted = found_P2KK * _WEIGHTS
    length = np.sqrt(np.square(weighted).sum(axis=(1, 2, 3), keepdims=True))
    return np.asarray(weighted / np.maximum(length, 1e-6))


_WEIGHTS = np.sqrt(np.hypot(np.arange(_COMPARED)[:, None], np.arange(_COMPARED)[None])).astype(np.float32)
