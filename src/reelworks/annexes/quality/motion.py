"""Measures of neighbouring frames: motion, stillness, cuts and flashes, at the small size of `sampling`.

Legend: T frames, H height, W width.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from reelworks.annexes.quality.measure import MISSING, SampledClip
from reelworks.data.catalog.store import measured_columns

_STILL_MEAN, _STILL_MAX = 0.3, 4.0  # levels by which a frame that shows nothing new differs after coding
# For which a frame is held at most that is drawn, filmed or shown at a lower rate than that of the file.
_HELD_SECONDS = 1 / 6
_MOST_NOISE = 4.0  # squared levels by which pixels differ at the small size without motion
_NEAR = 4  # pairs on either side that a cut stands out of
_TIMES, _LEVELS = 1.6, 6.0  # by which it does
_UNLIKE = 0.1  # by which the correlation of two frames falls short of 1 at a cut, beyond that of the pairs around it
_SAME_SCENE = 0.35  # correlation of frames
_FLAT = 1.0  # squared levels of the noise in frames without a picture, which are alike whatever it is
_LEAP, _RETURN, _LONGEST = 16.0, 0.35, 3  # levels of a flash, share of them that may remain, frames that it lasts


Pixels = NDArray[np.float32]


class Changes(NamedTuple):
    """Changes from each frame to the next one; arrays have one element for each pair of neighbours, `[T-1]`.

    Attributes:
        still: Mask of the pairs between which nothing changes.
        is_new: Mask `[T]` of the frames that are not held from the one before; where a picture stands still for longer, all are.
        cut, flash: Masks of the pairs at a cut, and of those at the beginning and the end of a flash.
        cuts, flashes: Number of cuts, of which several within a few frames are one, and of flashes.
    """

    still: NDArray[np.bool_]
    is_new: NDArray[np.bool_]
    cut: NDArray[np.bool_]
    flash: NDArray[np.bool_]
    cuts: int
    flashes: int


def changes(clip: SampledClip) -> Changes:
    """Return the changes between the frames of a clip that were read, computed once."""
    known: Changes | None = clip.shared.get("changes")
    if known is not None:
        return known
    step = np.abs(np.diff(clip.runs, axis=0))
    still = clip.is_next & (step.mean(axis=(1, 2)) < _STILL_MEAN) & (step.max(axis=(1, 2)) < _STILL_MAX)
    is_new = _is_new(still, round(clip.fps * _HELD_SECONDS))[: len(clip.runs)]
    flash, flashes = _flashes(clip.runs, clip.is_next)
    # A held frame has the difference 0 to the one before, which says nothing about what is usual.
    x, before = clip.runs[is_new], np.flatnonzero(is_new[1:])  # the pair that each new frame but the first ends
    is_next, flashing = clip.is_next[before], flash[before]
    difference = (step if is_new.all() else np.abs(np.diff(x, axis=0))).mean(axis=(1, 2), dtype=np.float64)
    cut, cuts, last = np.zeros(len(still), dtype=np.bool_), 0, -_LONGEST - 1
    for t in np.flatnonzero((difference > _LEVELS) & is_next & ~flashing).tolist():
        near = [i for i in range(max(t - _NEAR, 0), min(t + _NEAR + 1, len(before))) if i != t and is_next[i]]
        usual = float(np.median(difference[near])) if near else 0.0
        if difference[t] > _TIMES * usual + _LEVELS:
            unlike = [1 - _correlation(x[i], x[i + 1]) for i in (t, *near)]
            if unlike[0] > _TIMES * float(np.median(unlike[1:] or [0.0])) + _UNLIKE:
                cut[before[t]] = True
                if before[t] - last > _LONGEST:
                    cuts, last = cuts + 1, int(before[t])
    found = clip.shared["changes"] = Changes(still, is_new, cut, flash, cuts, flashes)
    return found


def _is_new(still: NDArray[np.bool_], longest: int) -> NDArray[np.bool_]:
    """Return the mask of the frames that are not held from the one before, where it is for at most so many frames."""
    is_new = np.ones(len(still) + 1, dtype=np.bool_)
    for begin, end in np.flatnonzero(np.diff(still, prepend=False, append=False)).reshape(-1, 2).tolist():
        is_new[begin + 1 : end + 1] = end - begin >= longest
    return is_new


def _flashes(x_THW: NDArray[np.float32], is_next: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], int]:
    """Return the pairs at which flashes begin and end, and their number."""
    level = x_THW.mean(axis=(1, 2), dtype=np.float64)
    at, count, free = np.zeros(len(is_next), dtype=np.bool_), 0, 0
    for t in np.flatnonzero((np.abs(np.diff(level)) > _LEAP) & is_next).tolist():
        if t < free:
            continue
        leap = abs(level[t + 1] - level[t])
        for end in range(t + 2, min(t + 2 + _LONGEST, len(level))):
            returns = abs(level[end] - level[t]) < _RETURN * leap and bool(is_next[t:end].all())
            if returns and _is_one_scene(x_THW[t : end + 1]):
                at[t] = at[end - 1] = True
                count, free = count + 1, end
                break
    return at, count


def _is_one_scene(x_THW: NDArray[np.float32]) -> bool:
    """Return whether the last frame shows what the first one did, or each what the one before it did, as in a pan."""
    neighbours = itertools.pairwise(x_THW)
    return _correlation(x_THW[0], x_THW[-1]) > _SAME_SCENE or all(
        _correlation(*two) > _SAME_SCENE for two in neighbours
    )


def _correlation(a: Pixels, b: Pixels) -> float:
    """Return the correlation of two frames; that of two without a picture is 1 at the same level, and 0 at others."""
    leap = abs(float(a.mean() - b.mean()))
    a, b = a - a.mean(), b - b.mean()
    scale = math.sqrt((float((a * a).mean()) + _FLAT) * (float((b * b).mean()) + _FLAT))
    return 0.0 if scale < 2 * _FLAT and leap > _LEVELS else (float((a * b).mean()) + _FLAT) / scale


@final
class Movement:
    """Mean speed of edges, and the share of frames that only repeat the one before.

    The change of brightness from frame to frame, divided by its slope in the picture, is how far an edge has moved (the
    equation of optical flow, Horn and Schunck 1981); the root of the mean square over all edges counts, those that stand
    still too. A pan by the height of the picture in a second gives about 100. Where an edge moves farther than its own width
    between two frames, the result is too small, and still grows with the speed.
    """

    name, version, columns, reads = "motion", 2, measured_columns.BUILT_IN["motion"], ("runs",)

    def values(self, clip: SampledClip) -> Sequence[float]:
        """Return the motion of a clip, and the share of its frames that stand still."""
        found, x = changes(clip), clip.runs
        moves = clip.is_next & ~found.cut & ~found.flash
        pairs = np.flatnonzero(moves)
        if not len(pairs):
            return MISSING, MISSING
        # From one new frame to the next is one step, which counts for each of the frames between them.
        new = np.flatnonzero(found.is_new)
        steps = moves[new[1:] - 1]
        begin, end = np.repeat([new[:-1][steps], new[1:][steps]], np.diff(new)[steps], axis=1)
        px = _speed(np.abs(x[end] - x[begin]), (x[begin] + x[end]) * np.float32(0.5), (end - begin).astype(np.float32))
        rate = clip.fps or MISSING
        return 100 * px * rate / x.shape[1], float(found.still[pairs].mean())


def _speed(step_PHW: Pixels, between_PHW: Pixels, frames_P: Pixels) -> float:
    """Return pixels per frame by the least squares of `step² = noise + speed² slope² / 2`, for all directions alike.

    Steps are divided by the frames in which they are made, and with them the noise.
    """
    down = between_PHW[:, 2:, 1:-1] - between_PHW[:, :-2, 1:-1]
    across = between_PHW[:, 1:-1, 2:] - between_PHW[:, 1:-1, :-2]
    slope = (np.square(down) + np.square(across)) / 4
    moved = np.square(step_PHW[:, 1:-1, 1:-1] / frames_P[:, None, None])
    if not slope.size:
        return 0.0
    energy, mean, deviation = float(moved.mean()), float(slope.mean()), float(slope.std())
    if deviation == 0:
        return 0.0
    fitted = float(((slope - mean) * moved).mean()) / deviation**2
    most = _MOST_NOISE * float(np.square(1 / frames_P).mean())
    noise = min(max(energy - fitted * mean, 0.0), most)  # what is more is motion by more than an edge
    return math.sqrt(2 * max(energy - noise, 0.0) / mean)


@final
class Cuts:
    """Hard cuts, where a frame has little in common with the one before while its neighbours are alike, and flashes."""

    name, version, columns, reads = "cuts", 2, measured_columns.BUILT_IN["cuts"], ("runs",)

    def values(self, clip: SampledClip) -> Sequence[float]:
        """Return the number of cuts and of flashes among the frames that were read."""
        if not clip.is_next.any():
            return MISSING, MISSING
        found = changes(clip)
        return float(found.cuts), float(found.flashes)
