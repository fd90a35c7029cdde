"""The learning rate: a function of the recipe and the step, so that nothing of it has to be saved."""

from __future__ import annotations

import math

from reelworks.core.errors import UserError
from reelworks.train.config import TrainConfig


def no_end(config: TrainConfig, steps_per_epoch: int | None = None) -> UserError:
    """The error for a rate that falls to an end which is not set.

    Args:
        config: It lacks the end.
        steps_per_epoch: As the first epoch is planned, where it is.
    """
    assert config.max_epochs is not None
    of_epochs = "the steps of all epochs, which `reelworks plan RECIPE` tells"
    if steps_per_epoch is not None:
        total = config.max_epochs * steps_per_epoch
        of_epochs = f"{total}, as many as {config.max_epochs} epochs of {steps_per_epoch} steps have"
    return UserError(
        "the rate falls until train.max_steps, which is not set: how many steps epochs have changes with the data",
        code="schedule-without-end",
        field="train.learning_rate_schedule",
        value=config.learning_rate_schedule,
        remedy=f"set train.max_steps to {of_epochs}",
    )


def learning_rate(config: TrainConfig, step: int) -> float:
    """Learning rate of the step after `step` done ones: linear warm-up, then as the schedule says."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    if config.learning_rate_schedule == "constant":
        return config.learning_rate
    assert config.max_steps is not None
    done = min((step - config.warmup_steps) / max(config.max_steps - config.warmup_steps, 1), 1.0)
    left = 1 - done if config.learning_rate_schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    return config.final_learning_rate + (config.learning_rate - config.final_learning_rate) * left
