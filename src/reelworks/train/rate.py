"""The learning rate: a function of the recipe and the step, so that nothing of it has to be saved."""

from __future__ import annotations

import math

from reelworks.train.config import TrainConfig


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
