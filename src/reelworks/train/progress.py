"""How far training has to go: by steps, by epochs, or by both."""

from __future__ import annotations

from reelworks.data.position import DataPosition
from reelworks.train.config import TrainConfig


def last_step(train: TrainConfig, position: DataPosition) -> int:
    """Step with which training ends; where epochs end it, as if all were as long as the plan here."""
    if train.max_epochs is None:
        assert train.max_steps is not None
        return train.max_steps
    left = (train.max_epochs - position.epoch) * position.plan.steps - position.row
    last = position.global_step + max(left, 0)
    return last if train.max_steps is None else min(last, train.max_steps)


def total_steps(train: TrainConfig, position: DataPosition) -> int | None:
    """Step with which training ends, as far as it is known: what is left of an epoch tells nothing of the length of others."""
    return train.max_steps if position.segment else last_step(train, position)


def is_done(train: TrainConfig, position: DataPosition) -> bool:
    """Tell whether training ends here."""
    if train.max_steps is not None and position.global_step >= train.max_steps:
        return True
    epochs = position.epoch + position.at_end
    return train.max_epochs is not None and epochs >= train.max_epochs
