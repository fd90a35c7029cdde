"""`[checkpoints]` of a recipe: when to save and what to keep."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from reelworks.core.config import Config
from reelworks.core.errors import UserError


class KeepBest(Config):
    """Keep the checkpoints with the best values of one metric.

    The direction is stated, never guessed from the metric's name.
    """

    metric: str = Field("validation/loss", min_length=1)
    mode: Literal["min", "max"] = "min"
    n: int = Field(1, ge=1)


class CheckpointsConfig(Config):
    """When checkpoints are written, and which of them stay.

    What stays is the union of `keep_last`, `keep_best`, `keep_every`, pinned checkpoints and the one in
    use. `save_total_limit` makes it that many in all, best included; the newest and the best stay even
    under a limit of 1.

    Attributes:
        every_steps: Optimizer steps between saves; None saves at the end and on signals only.
        keep_last: How many of the newest stay; under `save_total_limit` the limit decides instead.
        keep_best: Which of the best stay; None for none.
        keep_every: Checkpoints of steps that are multiples of this stay for good.
        save_total_limit: How many stay in all.
    """

    every_steps: int | None = Field(500, ge=1)
    keep_last: int = Field(3, ge=1)
    keep_best: KeepBest | None = KeepBest()
    keep_every: int | None = Field(None, ge=1)
    save_total_limit: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _milestones_are_saved(self) -> Self:
        if self.keep_every and self.every_steps and self.keep_every % self.every_steps:
            raise UserError(
                f"no checkpoint falls on each multiple of it: they are saved every {self.every_steps} steps",
                field="checkpoints.keep_every",
                value=self.keep_every,
                remedy=f"give a multiple of {self.every_steps}, or change every_steps",
            )
        return self
