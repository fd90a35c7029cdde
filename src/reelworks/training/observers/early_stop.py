"""End training early, when the validation loss does not fall any more (`validation.patience`)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

from reelworks.data.distributed.mesh import World
from reelworks.data.run import events
from reelworks.training.loop.config import ValidationConfig
from reelworks.training.step import progress


@dataclass
class LossSeries:
    """Validation losses that can be compared: the lowest one, its step, and the number of those after it."""

    best: float = math.inf
    best_step: int = 0
    without_progress: int = 0


class _Result(NamedTuple):
    step: int
    loss: float
    measured_on: str
    unread: int


@dataclass
class EarlyStop:
    """The validation losses of a stage by what they were measured on; equal on all ranks.

    Losses that were measured on something else, such as other clips, are a series of their own, which goes on if later ones
    are measured on the same again.

    Attributes:
        measure: Digest of what is measured now, or "" for what the last losses were measured on.
        present: The series that may end training.
        series: All of them by their digests.

    Examples:
        >>> early = EarlyStop(ValidationConfig(patience=2, every_steps=1))
        >>> for step, loss in enumerate([1.0, 0.8, 0.9, 0.85]):
        ...     early.add(step, loss)
        >>> early.is_over, early.present.best_step
        (True, 1)
    """

    config: ValidationConfig
    measure: str = ""
    present: LossSeries = field(default_factory=LossSeries)
    series: dict[str, LossSeries] = field(default_factory=dict)
    _results: list[_Result] = field(default_factory=list, compare=False)

    @classmethod
    def resume(
        cls, config: ValidationConfig, file: Path, step: int, world: World, first: int = 0, measure: str = ""
    ) -> Self:
        """Return the state after a step, by the validations of its stage, which began after the step `first`. Collective."""
        early = cls(config, measure)
        past = events.timeline(file, "validation") if world.is_main else []
        first += first > 0  # that of the untrained weights counts
        results = {event["step"]: event for event in past if first <= event["step"] <= step}
        for validated, event in sorted(cast(dict[int, Any], world.broadcast(results)).items()):
            loss = math.nan if event["loss"] is None else event["loss"]
            early._results.append(_Result(validated, loss, event.get("measured_on", ""), event.get("unread", 0)))
        early._compare_all()
        return early

    @property
    def is_over(self) -> bool:
        """Whether training ends."""
        return self.config.patience is not None and self.present.without_progress >= self.config.patience

    def add(self, step: int, loss: float, measured_on: str = "", *, unread: int = 0) -> bool:
        """Take the result of a validation, in place of a former one of its step; one off the schedule does not count.

        Returns whether its loss can be compared with others. That of a validation that could not read all clips cannot,
        unless the one of the step before could not read the same clips.
        """
        former = [one for one in self._results if one.step < step]
        self._results = [*former, _Result(step, loss, measured_on, unread)]
        return self._compare_all()

    def _compare_all(self) -> bool:
        self.present, self.series, is_comparable, last = LossSeries(), {}, True, ""
        for one in self._results:
            is_comparable, last = not one.unread or one.measured_on == last, one.measured_on
            if is_comparable and progress.is_due(self.config.every_steps, one.step):
                self._compare(one)
        return is_comparable

    def _compare(self, one: _Result) -> None:
        series = self.series.setdefault(one.measured_on, LossSeries())
        if one.measured_on.startswith(self.measure):  # which clips could be read follows
            self.present = series
        if one.loss < series.best - self.config.min_delta:
            series.best, series.best_step, series.without_progress = one.loss, one.step, 0
        else:
            series.without_progress += 1

    def __str__(self) -> str:
        return (
            f"the validation loss has not fallen below {self.present.best:.4f}, of step {self.present.best_step}, in "
            f"{self.present.without_progress} validations (validation.patience = {self.config.patience})"
        )
