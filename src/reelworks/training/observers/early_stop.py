"""End training early, when the validation loss does not fall any more (`validation.patience`)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from reelworks.data.distributed.mesh import World
from reelworks.data.run import events
from reelworks.training.loop.config import ValidationConfig
from reelworks.training.recipe.recipe import Recipe
from reelworks.training.step import progress


@dataclass
class EarlyStop:
    """The best validation loss so far, and the number of validations since then; equal on all ranks.

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

    @classmethod
    def resume(cls, recipe: Recipe, events_file: Path, step: int, world: World, *, first: int = 0) -> Self:
        """Return the state after a step, by the validations of its stage, which began after the step `first`. Collective.

        Those at other timesteps than the present ones had other losses.
        """
        early = cls(recipe.validation)
        if early.config.patience is not None:
            past = events.timeline(events_file, "validation") if world.is_main else []
            first += first > 0  # that of the untrained weights counts
            times = {f"{time:g}" for time in recipe.validation_timesteps}
            past = [event for event in past if {*event.get("loss_by_time", times)} == times]
            losses = world.broadcast({event["step"]: event["loss"] for event in past if first <= event["step"] <= step})
            assert isinstance(losses, dict)
            for validated, loss in losses.items():
                early.add(validated, math.nan if loss is None else loss)
        return early

    @property
    def is_over(self) -> bool:
        """Whether training ends."""
        return self.config.patience is not None and self.without_progress >= self.config.patience

    def add(self, step: int, loss: float) -> None:
        """Take the result of a validation; one off the schedule, as where a start ends, decides nothing."""
        if not progress.is_due(self.config.every_steps, step):
            return
        if loss < self.best - self.config.min_delta:
            self.best, self.best_step, self.without_progress = loss, step, 0
        else:
            self.without_progress += 1

    def __str__(self) -> str:
        return (
            f"the validation loss has not fallen below {self.best:.4f}, of step {self.best_step}, in "
            f"{self.without_progress} validations (validation.patience = {self.config.patience})"
        )
