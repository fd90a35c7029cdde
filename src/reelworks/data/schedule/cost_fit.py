"""Fit the time of a micro-batch to measured times, and judge the fit by shapes that it has not seen."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from reelworks.core.arrays import F64


class Timing(NamedTuple):
    """Measured time of a micro-batch of `batch_size` clips of `tokens` latent tokens each."""

    tokens: int
    batch_size: int
    milliseconds: float


@dataclass(frozen=True)
class BatchTime:
    """Milliseconds of a micro-batch of a bucket: per_batch + clips · per_clip, in which copies and repeats count like clips."""

    per_batch: float
    per_clip: float

    def milliseconds(self, clips: int) -> float:
        """Return the time of a micro-batch of so many clips."""
        return self.per_batch + clips * self.per_clip

    def through(self, clips: int, milliseconds: float) -> BatchTime:
        """Return a time in the same proportions, by which a micro-batch of so many clips takes so long.

        A hundredth is always of the clips: what buckets that were not measured cost is told by that part.
        """
        share = max(clips * self.per_clip / self.milliseconds(clips), 0.01)
        return BatchTime((1 - share) * milliseconds, share * milliseconds / clips)


@dataclass(frozen=True)
class CostModel:
    """Milliseconds of a micro-batch: per_batch + batch_size · (per_clip + per_token · n + per_token_squared · n²).

    No coefficient is negative, so that a larger micro-batch never costs less.
    """

    per_batch: float
    per_clip: float
    per_token: float
    per_token_squared: float

    def of_clips(self, tokens: int) -> BatchTime:
        """Return the predicted times of micro-batches of clips of so many tokens."""
        per_clip = self.per_clip + self.per_token * tokens + self.per_token_squared * tokens * tokens
        return BatchTime(self.per_batch, per_clip)

    def milliseconds(self, tokens: int, batch_size: int) -> float:
        """Return the predicted time of a micro-batch."""
        return self.of_clips(tokens).milliseconds(batch_size)

    def most_clips(self, tokens: int, milliseconds: float) -> int:
        """Return the largest batch size whose predicted time is not longer, 0 or less if none is."""
        clips = (milliseconds - self.per_batch) / max(self.of_clips(tokens).per_clip, 1e-12)
        return int(min(clips * (1 + 1e-12), 2**62))  # not below a whole number by rounding

    def residuals(self, timings: Sequence[Timing]) -> list[float]:
        """Return predicted / measured - 1 for each timing."""
        return [self.milliseconds(t.tokens, t.batch_size) / t.milliseconds - 1 for t in timings]


def fit(timings: Sequence[Timing]) -> CostModel:
    """Return the model with the least sum of squared relative errors, at least one timing given.

    What a single shape takes is that of its tokens.
    """
    terms = np.array([[t.batch_size * t.tokens, t.batch_size * t.tokens**2, t.batch_size, 1.0] for t in timings])
    measured = np.array([t.milliseconds for t in timings])
    scale = terms.max(axis=0)
    token, token_squared, clip, batch = map(float, nonnegative(terms / scale / measured[:, None]) / scale)
    return CostModel(batch, clip, token, token_squared)


def nonnegative(relative: F64) -> F64:
    """Solve relative · x = 1 by least squares with x ≥ 0, which some subset of the columns solves without a bound.

    Of solutions that are equally good, that with the fewest and the first columns is returned.
    """
    ones, best = np.ones(len(relative)), (float("inf"), np.zeros(relative.shape[1]))
    for count in range(1, relative.shape[1] + 1):
        for columns in map(list, itertools.combinations(range(relative.shape[1]), count)):
            values, *_ = np.linalg.lstsq(relative[:, columns], ones, rcond=None)
            error = float(np.square(relative[:, columns] @ values - ones).sum())
            if (values >= 0).all() and error < best[0] * (1 - 1e-9):
                x = np.zeros(relative.shape[1])
                x[columns] = values
                best = (error, x)
    return best[1]


def held_out_errors(timings: Sequence[Timing]) -> dict[int, float]:
    """Return the largest relative error at each number of tokens, predicted from the timings at all others."""
    errors = {}
    for tokens in sorted({t.tokens for t in timings}):
        others = [t for t in timings if t.tokens != tokens]
        if others:
            errors[tokens] = max(fit(others).residuals([t for t in timings if t.tokens == tokens]), key=abs)
    return errors
