"""The course of training: its end, by max_steps, max_epochs or max_clips, whichever comes first, and its learning rate.

Both are functions of the recipe, the position and the start of the stage, so that a checkpoint holds no state of a
scheduler. A rate that falls over epochs falls over steps, too: an epoch counts as many as the first one had when the
stage began. That number is kept, so that clips that come and go later, other batch sizes and other ranks leave all
rates as they were; the recipe's other keys take effect at once.
"""

from __future__ import annotations

import math

import numpy as np

from reelworks.data.loader.position import DataPosition
from reelworks.data.schedule.cursor import RUN_START, Cursor, StageStart
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


def falls_until(config: TrainConfig, stage: StageStart) -> int:
    """Return the step of the run at which a falling rate reaches its end."""
    if config.max_steps is not None:
        return config.max_steps
    assert config.max_epochs is not None
    return stage.epochs_step + (config.max_epochs - stage.epoch) * stage.epoch_steps


def learning_rate(config: TrainConfig, step: int, stage: StageStart = RUN_START) -> float:
    """Return the learning rate of the step that follows `step` done ones: linear warm-up, then the schedule.

    Both count from the first step of the stage.
    """
    done_steps = step - stage.step
    if done_steps < config.warmup_steps:
        return config.learning_rate * (done_steps + 1) / config.warmup_steps
    if config.learning_rate_schedule == "constant":
        return config.learning_rate
    falls = falls_until(config, stage) - stage.step - config.warmup_steps
    done = min((done_steps - config.warmup_steps) / max(falls, 1), 1.0)
    if done < 1:
        done = config.learning_rate_cycles * done % 1
    left = 1 - done if config.learning_rate_schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    return config.final_learning_rate + (config.learning_rate - config.final_learning_rate) * left
