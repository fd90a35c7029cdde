"""The learning rate is a function of the recipe and the step alone; what cannot be followed is refused."""

from __future__ import annotations

import pytest
import tiny_recipe
import torch
from diffusers.optimization import get_scheduler
from hypothesis import given
from hypothesis import strategies as st

from reelworks.core.errors import UserError
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


@pytest.mark.parametrize("name", ["linear", "cosine"])
@pytest.mark.parametrize("warmup", [0, 5])
def test_schedules_are_those_of_the_field(name: str, warmup: int) -> None:
    """After warm-up, step for step as in diffusers."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.4)
    theirs = get_scheduler(name, optimizer, num_warmup_steps=warmup, num_training_steps=20)
    expected = []
    for _ in range(20):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()
    found = rates(max_steps=20, warmup_steps=warmup, learning_rate_schedule=name)
    assert found[warmup:] == pytest.approx(expected[warmup:])


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
        ("final_learning_rate", {"final_learning_rate": 1.0, "learning_rate_schedule": "linear", "max_steps": 3}),
    ],
)
def test_a_rate_that_cannot_be_followed_is_refused(field: str, keys: dict[str, object]) -> None:
    """A fall to nowhere, or upwards; with what to write."""
    with pytest.raises(UserError) as caught:
        recipe_file.parse({**RECIPE, "train": keys})
    assert caught.value.field == f"train.{field}"
    assert caught.value.remedy
