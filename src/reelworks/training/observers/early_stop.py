"""End training early, when the validation loss does not fall any more (`validation.patience`)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

from reelworks.data.distributed.mesh import World
from reelworks.data.run import events
from reelworks.training.loop.config import ValidationConfig
from reelworks.training.step import progress


@dataclass
class EarlyStop:
    """The best validation loss of the present series, and the number of validations since then; equal on all ranks.

    A validation that is measured on something else than the ones before, such as other clips, begins a new series.

    Examples:
        >>> early = EarlyStop(ValidationConfig(patience=2, every_steps=1))
        >>> for step, loss in enumerate([1.0, 0.8, 0.9, 0.85]):
        ...     early.add(step, loss)
        >>> early.is_over, early.best_step
        (True, 1)
    """

    config: ValidationConfig
    best: float = math.inf
    best_step: int = 0
    without_progress: int = 0
    measured_on: str = ""  # digest of the present series
    _last: str = ""  # of the last validation

    @classmethod
    def resume(cls, config: ValidationConfig, events_file: Path, step: int, world: World, *, first: int = 0) -> Self:
        """Return the state after a step, by the validations of its stage, which began after the step `first`. Collective."""
        early = cls(config)
        past = events.timeline(events_file, "validation") if world.is_main else []
        first += first > 0  # that of the untrained weights counts
        results = {event["step"]: event for event in past if first <= event["step"] <= step}
        for validated, event in cast(dict[int, Any], world.broadcast(results)).items():
            loss = math.nan if event["loss"] is None else event["loss"]
            early.add(validated, loss, event.get("measured_on", ""), unread=event.get("unread", 0))
        return early

    @property
    def is_over(self) -> bool:
        """Whether training ends."""
        return self.config.patience is not None and self.without_progress >= self.config.patience

    def add(self, step: int, loss: float, measured_on: str = "", *, unread: int = 0) -> bool:
        """Take the result of a validation; one off the schedule, as where a start ends, does not count.

        Returns whether its loss can be compared with others. That of a validation that could not read all clips cannot,
        unless the one before it could not read the same clips.
        """
        is_comparable = not unread or measured_on == self._last
        self._last = measured_on
        if is_comparable and progress.is_due(self.config.every_steps, step):
            self._compare(step, loss, measured_on)
        return is_comparable

    def _compare(self, step: int, loss: float, measured_on: str) -> None:
        if measured_on != self.measured_on:
            self.measured_on, self.best, self.without_progress = measured_on, math.inf, 0
        if loss < self.best - self.config.min_delta:
            self.best, self.best_step, self.without_progress = loss, step, 0
        else:
            self.without_progress += 1

    def __str__(self) -> str:
        return (
            f"the validation loss has not fallen below {self.best:.4f}, of step {self.best_step}, in "
            f"{self.without_progress} validations (validation.patience = {self.config.patience})"
        )
