"""The course of training: its end, by max_steps, max_epochs or max_clips, whichever comes first, and its learning rate.

Both are functions of the recipe and the position, so that a checkpoint holds no state of a scheduler.
"""

from __future__ import annotations

import math

import numpy as np

from reelworks.data.loader.position import DataPosition
from reelworks.data.schedule.cursor import Cursor
from reelworks.training.loop.config import TrainConfig


def is_due(every_steps: int | None, step: int) -> bool:
    """Whether what happens every so many steps happens after a step; None never does."""
    return every_steps is not None and step % every_steps == 0


def is_done(train: TrainConfig, position: DataPosition | Cursor) -> bool:
    """Whether training ends at a position."""
    return bool(reached(train, position))


def reached(train: TrainConfig, position: DataPosition | Cursor) -> list[str]:
    """Return the keys of `[train]` whose ends are reached at a position."""
    done = {
        "max_steps": position.global_step,
        "max_epochs": position.epoch + position.at_end,
        "max_clips": position.clips,
    }
    return [key for key, count in done.items() if (end := getattr(train, key)) is not None and count >= end]


def last_step(train: TrainConfig, position: DataPosition) -> int:
    """Return the step at which training ends; later epochs are assumed to be as the plan at the position."""
    plan, left = position.plan, []
    if train.max_epochs is not None:
        left.append((train.max_epochs - position.epoch) * plan.num_steps - position.plan_step)
    if train.max_clips is not None:
        before = plan.planned_before
        wanted = int(before[position.plan_step]) + train.max_clips - position.clips
        epochs, rest = divmod(wanted, max(int(before[-1]), 1)) if wanted > before[-1] else (0, wanted)
        left.append(epochs * plan.num_steps + int(np.searchsorted(before, rest)) - position.plan_step)
    last = position.global_step + max(min(left, default=0), 0)
    if train.max_steps is None:
        return last
    return min(last, train.max_steps) if left else train.max_steps


def total_steps(train: TrainConfig, position: DataPosition) -> int | None:
    """Return `last_step` if it is known: in a later segment, the plan does not show how long an epoch is."""
    return train.max_steps if position.segment else last_step(train, position)


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
