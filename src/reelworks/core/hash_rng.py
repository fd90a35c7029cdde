"""Random draws as pure functions of their keys, without generator state.

Every choice about a clip is `hash64(seed, epoch, uid, copy, purpose)`: it does not depend on other
clips, on rank, world size or workers, nor on the order of execution, so there is no generator state
to save. Draws use unsigned 64-bit integer arithmetic and are equal on every platform.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelworks.core.arrays import F64, I64, U64, Mask

_ALL_BITS = 0xFFFFFFFFFFFFFFFF
_STEP = 0x9E3779B97F4A7C15
_FEW = 16
Word = int | np.integer[Any] | NDArray[Any] | str


class Purpose(IntEnum):
    """Purpose of a draw. The numbers are part of every plan: never renumber, only append."""

    SHUFFLE = 1
    STEP_ORDER = 2
    KEEP = 3
    HOLD_OUT = 4
    FIRST_FRAME = 5
    CROP = 6
    TEXT_DROPOUT = 7
    MASK = 8
    TIMESTEP = 9
    NOISE = 10
    MODEL = 11
    SAMPLES = 12
    SLOT_ORDER = 13
    WINDOW = 14
    SHARE = 15
    EXPERT = 16
    FLIP = 17
    ROTATION = 18
    COLOR = 19
    CAPTION = 20
    TAG_DROPOUT = 21
    TAG_ORDER = 22
    SOUND = 23
    DUPLICATE = 24
    NOISE_OFFSET = 25
    MULTIRES_NOISE = 26
    INPUT_PERTURBATION = 27
    GIVEN_NOISE = 28


def _mix(x: U64) -> U64:
    """Finalise 64 bits (splitmix64; Steele, Lea, Flood 2014): each input bit reaches each output bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _mix_int(x: int) -> int:
    """Return what `_mix` does, of an integer that is cut to 64 bits first."""
    x &= _ALL_BITS
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _ALL_BITS
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _ALL_BITS
    return x ^ (x >> 31)


def text_words(texts: Iterable[str]) -> U64:
    """Return an integer for each text, so that `hash64(text_words(texts))` equals `hash_int(text)` of each."""
    return byte_words(text.encode() for text in texts)


def byte_words(texts: Iterable[bytes]) -> U64:
    """Return an integer for each text, given in UTF-8, as `text_words` does."""
    digest_of = functools.partial(hashlib.blake2b, digest_size=8)
    return np.frombuffer(b"".join([digest_of(text).digest() for text in texts]), dtype="<u8").astype(np.uint64)


def _int_word(value: int | str | np.integer[Any]) -> int:
    """Return a word that all clips share, cut to 64 bits."""
    return _text_word(value) if isinstance(value, str) else int(value) & _ALL_BITS


@functools.lru_cache(maxsize=4096)
def _text_word(text: str) -> int:
    return int(text_words([text])[0])


def hash64(*words: Word) -> U64:
    """Hash words (integers, strings, or integer arrays that broadcast) to uint64 of their common shape."""
    return extend(np.asarray(_STEP, dtype=np.uint64), *words)


def extend(state: U64, *words: Word) -> U64:
    """Continue a hash: `extend(hash64(a), b) == hash64(a, b)`, so that draws can share a common prefix."""
    done = 0
    if state.ndim == 0:
        # Python's integers are several times as fast as numpy's for the words that all clips share.
        number = int(state)
        while done < len(words) and isinstance(word := words[done], int | str | np.integer):
            number = _mix_int(number + _int_word(word) * _STEP + 1)
            done += 1
        state = np.asarray(number, dtype=np.uint64)
    for word in words[done:]:
        state = _extended(state, word)
    return state


def _extended(state: U64, word: Word) -> U64:
    numbers: list[int] | None = None
    if isinstance(word, int | str | np.integer):
        if state.ndim == 1 and state.size <= _FEW:
            numbers = [_int_word(word)] * state.size
    elif word.ndim == 1 and word.size <= _FEW and state.shape in ((), word.shape):
        numbers = [number & _ALL_BITS for number in word.tolist()]
    if numbers is not None:  # those of a micro-batch: Python's integers are several times as fast here, too
        states = state.tolist() if state.ndim else [int(state)] * len(numbers)
        mixed = [_mix_int(before + number * _STEP + 1) for before, number in zip(states, numbers, strict=True)]
        return np.array(mixed, dtype=np.uint64)
    with np.errstate(over="ignore"):
        if isinstance(word, int | str | np.integer):
            return _mix(state + np.uint64((_int_word(word) * _STEP + 1) & _ALL_BITS))
        return _mix(state + word.astype(np.uint64) * np.uint64(_STEP) + np.uint64(1))


def hash_int(*words: Word) -> int:
    """Hash scalar words to one Python integer in [0, 2^64)."""
    return int(hash64(*words))


def uniform(h: U64) -> F64:
    """Map hashes to [0, 1) by their upper 53 bits."""
    return (h >> np.uint64(11)).astype(np.float64) * np.float64(2.0**-53)


def below(h: U64, n: int | NDArray[Any]) -> I64:
    """Map hashes to integers in [0, n), n < 2^31."""
    return (((h >> np.uint64(33)) * np.asarray(n).astype(np.uint64)) >> np.uint64(31)).astype(np.int64)


def bernoulli(h: U64, probability: float | NDArray[Any]) -> Mask:
    """Return booleans that are True with the given probability: never for 0, always for 1."""
    threshold = np.asarray(np.floor(np.asarray(probability, dtype=np.float64) * 2.0**53)).astype(np.uint64)
    return (h >> np.uint64(11)) < threshold
