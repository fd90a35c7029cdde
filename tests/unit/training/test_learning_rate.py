"""The learning rate is a function of the recipe and the step alone; what cannot be followed is refused."""

from __future__ import annotations

from typing import Any

import pytest
import tiny_recipe
import torch
from diffusers.optimization import get_scheduler
from hypothesis import given
from hypothesis import strategies as st

from reelworks.core.errors import UserError
from reelworks.data.schedule.cursor import StageStart
from reelworks.training.loop.config import TrainConfig
from reelworks.training.recipe import recipe_file
from reelworks.training.step.progress import learning_rate

RECIPE = tiny_recipe.least(bucket=[{"resolution": "32px", "num_frames": 1}])


def rates(**keys: object) -> list[float]:
    config = TrainConfig.model_validate({"learning_rate": 0.4, **keys})
    return [learning_rate(config, step) for step in range(config.max_steps or 6)]


def test_it_warms_up_and_stays() -> None:
    """By default; the first step is taken with more than nothing."""
    assert rates(max_epochs=1, warmup_steps=4) == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])


@pytest.mark.parametrize(
    ("name", "keys", "theirs"),
    [
        ("linear", {}, {}),
        ("cosine", {}, {}),
        ("cosine", {"learning_rate_cycles": 3}, {"name": "cosine_with_restarts", "num_cycles": 3}),
    ],
)
@pytest.mark.parametrize("warmup", [0, 5])
def test_schedules_are_those_of_the_field(name: str, keys: dict[str, Any], theirs: dict[str, Any], warmup: int) -> None:
    """After warm-up, step for step as in diffusers."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.4)
    of_field = {"name": name, "num_warmup_steps": warmup, "num_training_steps": 20} | theirs
    scheduler = get_scheduler(optimizer=optimizer, **of_field)
    expected = []
    for _ in range(20):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    found = rates(max_steps=20, warmup_steps=warmup, learning_rate_schedule=name, **keys)
    assert found[warmup:] == pytest.approx(expected[warmup:])


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_a_rate_falls_over_epochs_as_over_their_steps(name: str) -> None:
    """To the bit, in a stage too, and after a restart of the data, whose epochs are counted anew."""
    keys = {"learning_rate": 0.4, "learning_rate_schedule": name, "warmup_steps": 3, "final_learning_rate": 0.01}
    for stage, epochs, last in (
        (StageStart(epoch_steps=7), 3, 21),
        (StageStart("second", 40, 5, epochs_step=40, epoch_steps=7), 5 + 3, 61),
        (StageStart(epochs_step=30, epoch_steps=7), 3, 51),
    ):
        of_epochs = TrainConfig.model_validate({**keys, "max_epochs": epochs})
        of_steps = TrainConfig.model_validate({**keys, "max_steps": last})
        every = range(stage.step, last + 5)
        assert [learning_rate(of_epochs, step, stage) for step in every] == [
            learning_rate(of_steps, step, stage) for step in every
        ]
        assert learning_rate(of_epochs, last, stage) == 0.01 < learning_rate(of_epochs, last - 1, stage)


@given(
    name=st.sampled_from(["linear", "cosine"]),
    steps=st.integers(1, 200),
    warmup=st.integers(0, 250),
    final=st.floats(0, 0.4),
)
def test_it_never_leaves_its_bounds(name: str, steps: int, warmup: int, final: float) -> None:
    """Up while warming, then down and never below the last; whole runs of warm-up too."""
    keys = {"learning_rate_schedule": name, "final_learning_rate": final}
    found = rates(max_steps=steps, warmup_steps=warmup, **keys)
    rising, falling = found[:warmup], found[warmup:]
    assert rising == sorted(rising)
    assert falling == sorted(falling, reverse=True)
    assert all(0 < rate <= 0.4 + 1e-9 for rate in found)
    assert not falling or (falling[0] == pytest.approx(0.4) and falling[-1] >= final - 1e-9)
    config = TrainConfig.model_validate({"learning_rate": 0.4, "max_steps": steps, "warmup_steps": 0, **keys})
    assert learning_rate(config, steps) == pytest.approx(final)


@pytest.mark.parametrize(
    ("field", "keys"),
    [
        ("final_learning_rate", {"final_learning_rate": 1e-5, "max_steps": 3}),
        ("learning_rate_cycles", {"learning_rate_cycles": 2, "learning_rate_schedule": "linear", "max_steps": 3}),
        ("learning_rate_schedule", {"learning_rate_schedule": "linear", "max_clips": 3}),
        ("final_learning_rate", {"final_learning_rate": 1.0, "learning_rate_schedule": "linear", "max_steps": 3}),
    ],
)
def test_a_rate_that_cannot_be_followed_is_refused(field: str, keys: dict[str, object]) -> None:
    """A fall to nowhere, or upwards; with what to write."""
    with pytest.raises(UserError) as caught:
        recipe_file.parse({**RECIPE, "train": keys})
    assert caught.value.field == f"train.{field}"
    assert caught.value.remedy
