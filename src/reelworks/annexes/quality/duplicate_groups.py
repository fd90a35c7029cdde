"""Groups of near-duplicates: the best of each, the rank of the others, and numbers that groups keep while clips come and go.

Legend: N clips, P pairs.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from reelworks.annexes.quality.measure import ComparedClips
from reelworks.core import blocks

Pairs = NDArray[np.int64]  # `[P, 2]`, the smaller index first
SHARPNESS_BYTES = 2  # at the end of the features of a clip


def sharpness_bytes(sharpness: float) -> bytes:
    """Return the sharpness of a clip, NaN where it has none, as a part of its features."""
    level = 0 if math.isnan(sharpness) else round(sharpness * 65535)
    return level.to_bytes(SHARPNESS_BYTES, "little")


def best_first(clips: ComparedClips) -> NDArray[np.int64]:
    """Return the indices of clips, the largest first, and of those as large the longest, then the sharpest."""
    sharpness = clips.features[:, -SHARPNESS_BYTES:].copy().view("<u2")[:, 0]
    return np.lexsort((clips.uid, -sharpness.astype(np.int64), -clips.num_frames, -clips.pixels))


def values(clips: ComparedClips, label: NDArray[np.int64], best: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the number of each clip's group, NaN for a clip alone, and its rank.

    Args:
        label: An index for each clip that those of its group share.
        best: Indices of clips, the best first.
    """
    order = best[np.argsort(label[best], kind="stable")]
    starts = np.diff(label[order], prepend=-1) != 0
    first = np.maximum.accumulate(np.where(starts, np.arange(len(order)), 0))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order)) - first
    return np.stack([_numbers(label, clips.former[:, 0]), rank.astype(np.float64)], axis=1)


def _numbers(label: NDArray[np.int64], former: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the numbers of groups, NaN for a clip alone; a group takes the least of its members that no other has."""
    number = np.full(len(label), np.nan)
    grouped = np.flatnonzero(np.bincount(label, minlength=len(label))[label] > 1)
    heads, group = np.unique(label[grouped], return_inverse=True)
    least = np.full(len(heads), np.inf)
    known = ~np.isnan(former[grouped])
    np.minimum.at(least, group[known], former[grouped][known])
    _, first = np.unique(least, return_index=True)  # of several groups that were one, the first keeps the number
    keeps = blocks.mask(first, len(heads)) & np.isfinite(least)
    next_free = int(max(former[~np.isnan(former)].max(initial=0), 0)) + 1
    least[~keeps] = next_free + np.arange(int((~keeps).sum()))
    number[grouped] = least[group]
    return number
