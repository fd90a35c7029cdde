"""Learning-rate schedules: functions of the recipe and the step, so that a checkpoint holds no scheduler state."""

from __future__ import annotations

import math

from reelworks.core.errors import UserError
from reelworks.train.config import TrainConfig


def learning_rate(config: TrainConfig, step: int, first_step: int = 0) -> float:
    """Return the learning rate of the step that follows `step` done ones: linear warm-up, then the schedule.

    Both count from `first_step`, with which the stage began.
    """
    step -= first_step
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    if config.learning_rate_schedule == "constant":
        return config.learning_rate
    assert config.max_steps is not None
    falls = config.max_steps - first_step - config.warmup_steps
    done = min((step - config.warmup_steps) / max(falls, 1), 1.0)
    left = 1 - done if config.learning_rate_schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    return config.final_learning_rate + (config.learning_rate - config.final_learning_rate) * left


def no_end(config: TrainConfig, steps_per_epoch: int | None = None) -> UserError:
    """Return the error for a rate that lacks its end; names max_steps if the steps of an epoch are planned."""
    steps = "the steps of all epochs, which `reelworks plan RECIPE` prints"
    if config.max_epochs is None:
        steps = "the steps in which the clips are trained"
    elif steps_per_epoch is not None:
        total = config.max_epochs * steps_per_epoch
        steps = f"{total}, the steps of {config.max_epochs} epochs of {steps_per_epoch} steps"
    return UserError(
        "the learning rate falls until train.max_steps, which is not set; the steps of an epoch change with the data",
        code="schedule-without-end",
        field="train.learning_rate_schedule",
        value=config.learning_rate_schedule,
        remedy=f"set train.max_steps to {steps}",
    )


def no_steps_of_stage(config: TrainConfig, stage: str) -> UserError:
    """Return the error for a rate that falls in a stage whose end is not counted in steps."""
    return UserError(
        "the learning rate falls until the steps of the stage, which are not set",
        code="schedule-without-end",
        field="train.learning_rate_schedule",
        value=config.learning_rate_schedule,
        remedy=f"write steps in [[stage]] {stage}; `reelworks plan` tells those of its epochs or clips while the rate is constant",
    )
