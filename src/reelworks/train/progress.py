"""The end of training, by max_steps, by max_epochs, or by the one that comes first."""

from __future__ import annotations

from reelworks.data.position import DataPosition
from reelworks.train.config import TrainConfig


def is_due(every_steps: int | None, step: int) -> bool:
    """Whether what happens every so many steps happens after a step; None never does."""
    return every_steps is not None and step % every_steps == 0


def is_done(train: TrainConfig, position: DataPosition) -> bool:
    """Whether training ends at a position."""
    if train.max_steps is not None and position.global_step >= train.max_steps:
        return True
    return train.max_epochs is not None and position.epoch + position.at_end >= train.max_epochs


def last_step(train: TrainConfig, position: DataPosition) -> int:
    """Return the step at which training ends; later epochs are assumed to be as long as the plan at the position."""
    if train.max_epochs is None:
        assert train.max_steps is not None
        return train.max_steps
    left = (train.max_epochs - position.epoch) * position.plan.num_steps - position.plan_step
    last = position.global_step + max(left, 0)
    return last if train.max_steps is None else min(last, train.max_steps)


def total_steps(train: TrainConfig, position: DataPosition) -> int | None:
    """Return `last_step` if it is known: in a later segment, the plan does not show how long an epoch is."""
    return train.max_steps if position.segment else last_step(train, position)
