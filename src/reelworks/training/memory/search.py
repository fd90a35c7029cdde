"""Search the largest batch size that keeps two limits, memory and time, with few measurements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Trial:
    """One bucket in training at one batch size.

    Attributes:
        milliseconds: Median time of forward, backward and optimizer step.
        peak_bytes: Peak memory of the device, or of the process on a CPU, with weights and optimizer state.
        residual: Relative error of the fitted time; None before the fit.
    """

    bucket: str
    tokens: int
    batch_size: int
    milliseconds: float
    peak_bytes: int
    residual: float | None = None


@dataclass(frozen=True)
class Limits:
    """Limits on a micro-batch: memory, time in milliseconds (None for no limit), and clips.

    A single clip may take longer, since no clip is left out for its length.
    """

    memory_bytes: int
    milliseconds: float | None
    clips: int

    def allow(self, trial: Trial) -> bool:
        """Return whether a trial keeps memory and time."""
        return trial.peak_bytes <= self.memory_bytes and (
            self.milliseconds is None or trial.milliseconds <= self.milliseconds or trial.batch_size == 1
        )


def largest_batch(measure: Callable[[int], Trial | None], limits: Limits) -> tuple[int, list[Trial]]:
    """Return the largest batch size within limits, 0 if there is none, and all trials.

    `measure` returns None where memory does not suffice. Memory and time grow with the batch size.
    """
    trials: list[Trial] = []
    good, bad, size = 0, limits.clips + 1, 1
    while good + 1 < bad:
        trial = measure(size)
        if trial is not None:
            trials.append(trial)
        if trial is not None and limits.allow(trial):
            good = size
        else:
            bad = size
        size = _next(good, bad, [t for t in trials if t.batch_size <= good], limits)
    return good, trials


def _next(good: int, bad: int, allowed: list[Trial], limits: Limits) -> int:
    """Return the batch size to try between `good` and `bad`: where a line through two trials meets a limit."""
    if bad <= limits.clips:
        return (good + bad) // 2
    guess = 2 * good
    if len(allowed) > 1:
        first, last = allowed[0], allowed[-1]
        between = last.batch_size - first.batch_size
        slope = max((last.peak_bytes - first.peak_bytes) / between, 1.0)
        guess = int(good + (limits.memory_bytes - last.peak_bytes) / slope)
        if limits.milliseconds is not None:
            slope = max((last.milliseconds - first.milliseconds) / between, 1e-6)
            guess = min(guess, int(good + (limits.milliseconds - last.milliseconds) / slope))
        # A few clips say little about hundreds: doubling bounds what one wrong guess costs.
        guess = min(guess, 4 * good)
    return min(max(guess, good + 1), bad - 1)
