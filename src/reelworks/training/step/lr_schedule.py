"""Learning-rate schedules: functions of the recipe and the step, so that a checkpoint holds no scheduler state."""

from __future__ import annotations

import math

from reelworks.training.loop.config import TrainConfig


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
