"""Conditioning masks: which latent frames are generated and which are conditions.

A mask is True for a generated frame, which has the clip's timestep, and False for a condition, which stays clean
at timestep 0. Strategy names and distributions are those of Open-Sora 1.2. Where its rules fail on short clips (a
quarter of two or three frames; head and tail that together leave nothing to generate), all frames are generated.

Each clip has one 64-bit word, `hash_rng.hash64(seed, epoch, uid, copy, Purpose.MASK)`, from which all of its draws
are derived. Legend: B clips, N latent frames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from reelworks.core import hash_rng
from reelworks.core.arrays import I64, U64, Mask

Strategy = Callable[[int, U64], Mask]

# Strategies of models that are told which areas are given (`part_masks`), besides those of frames.
AREAS = ("inpaint", "outpaint")
TOLERANCE = 1e-6  # allowed error of the sum of ratios, since decimals such as 0.1 + 0.2 do not sum exactly


def _identity(n: int, word_B: U64) -> Mask:
    return np.ones((len(word_B), n), dtype=bool)


def _outside(start_B: I64, length_B: I64, n: int) -> Mask:
    """Return a mask that is False in `[start, start + length)`."""
    frame_N = np.arange(n)
    start_B1, stop_B1 = start_B[:, None], (start_B + length_B)[:, None]
    return (frame_N < start_B1) | (frame_N >= stop_B1)


def _one(n: int, word_B: U64) -> I64:
    return np.ones(len(word_B), dtype=np.int64)


def _up_to_a_quarter(n: int, word_B: U64) -> I64:
    """Draw 1 to n // 4 conditioning frames, or 0 if a quarter is less than one frame."""
    quarter = n // 4
    return hash_rng.below(hash_rng.hash64(word_B, "length"), quarter) + 1 if quarter else 0 * _one(n, word_B)


def _run(length: Callable[[int, U64], I64], place: str) -> Strategy:
    """Return a strategy whose condition is one run of frames, or two of equal length at both ends."""

    def strategy(n: int, word_B: U64) -> Mask:
        length_B = length(n, word_B)
        first_B = np.zeros_like(length_B)
        last_B = n - length_B
        if place == "random":
            return _outside(hash_rng.below(hash_rng.hash64(word_B, "start"), last_B + 1), length_B, n)
        head, tail = _outside(first_B, length_B, n), _outside(last_B, length_B, n)
        return {"head": head, "tail": tail, "head_tail": head & tail}[place]

    return strategy


def _random(n: int, word_B: U64) -> Mask:
    """Condition on each frame with a probability drawn from [0.1, 0.9); at least one frame is generated."""
    share_B = 0.1 + 0.8 * hash_rng.uniform(hash_rng.hash64(word_B, "given"))
    mask: Mask = hash_rng.uniform(hash_rng.hash64(word_B[:, None], "frame", np.arange(n))) > share_B[:, None]
    mask[~mask.any(axis=1), -1] = True
    return mask


def _interpolate(n: int, word_B: U64) -> Mask:
    """Condition on every second frame, from the first or the second on."""
    return np.asarray(np.arange(n) % 2 != hash_rng.below(hash_rng.hash64(word_B, "start"), 2)[:, None])


STRATEGIES: Mapping[str, Strategy] = {
    "identity": _identity,
    "quarter_random": _run(_up_to_a_quarter, "random"),
    "quarter_head": _run(_up_to_a_quarter, "head"),
    "quarter_tail": _run(_up_to_a_quarter, "tail"),
    "quarter_head_tail": _run(_up_to_a_quarter, "head_tail"),
    "image_random": _run(_one, "random"),
    "image_head": _run(_one, "head"),
    "image_tail": _run(_one, "tail"),
    "image_head_tail": _run(_one, "head_tail"),
    "random": _random,
    "interpolate": _interpolate,
    "intepolate": _interpolate,  # as Open-Sora's configs spell it
}


def frame_mask(name: str, n: int, word_B: U64) -> Mask:
    """Draw masks `[B, N]` of one strategy for `n` latent frames: never all False, and all True for pictures."""
    mask = STRATEGIES[name](n, word_B) if n > 1 else _identity(n, word_B)
    mask[~mask.any(axis=1)] = True
    return mask


def draw_frame_mask(ratios: Mapping[str, float], n: int, word_B: U64) -> Mask:
    """Draw each clip's strategy by `ratios`, with `identity` for the rest, and then its mask, `[B, N]`.

    The ratios are shares by strategy name, validated by `ObjectiveConfig.mask_ratios`; their order has no effect.
    """
    mask = _identity(n, word_B)
    for name, chosen_B in drawn_strategies(ratios, word_B):
        mask[chosen_B] = frame_mask(name, n, word_B[chosen_B])
    return mask


def drawn_strategies(ratios: Mapping[str, float], word_B: U64) -> Iterator[tuple[str, Mask]]:
    """Yield each strategy that is drawn for a clip except `identity`, and for which clips, `[B]`."""
    if not ratios:
        return
    choice_B = hash_rng.uniform(hash_rng.hash64(word_B, "strategy"))
    lower = 0.0
    for name in (*STRATEGIES, *AREAS):
        if name == "identity" or not (ratio := ratios.get(name, 0.0)):
            continue
        chosen_B = (choice_B >= lower) & (choice_B < lower + ratio)
        lower += ratio
        if chosen_B.any():
            yield name, chosen_B
