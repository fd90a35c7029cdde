"""Keys of `[train]` and `[precision]`: those that cannot be are refused by their own name."""

from __future__ import annotations

import pytest
import tiny_recipe
from hypothesis import assume, given
from hypothesis import strategies as st
from refused import refused

from reelworks.core.errors import UserError
from reelworks.training.loop.config import TrainConfig
from reelworks.training.recipe import recipe_file


def recipe(**tables: object) -> dict[str, object]:
    return tiny_recipe.least(bucket=[{"resolution": "64x64", "num_frames": 1}], train={"max_steps": 9}) | tables


@pytest.mark.parametrize("pair", [[3, 2], [0, 2], [3], [1, 2, 3]])
def test_steps_to_skip_are_pairs_from_first_to_last(pair: list[int]) -> None:
    """The error names the pair that is none, not the whole table."""
    with pytest.raises(UserError) as caught:
        recipe_file.parse(
            tiny_recipe.least(
                bucket=[{"resolution": "48px", "num_frames": 1}], train={"max_steps": 9, "skip_steps": [[1, 1], pair]}
            )
        )
    assert (caught.value.field, caught.value.value) == ("train.skip_steps", pair)
    assert caught.value.remedy


_STEPS = st.integers(1, 12)


@given(st.lists(st.tuples(_STEPS, _STEPS).map(sorted), min_size=1, max_size=5), _STEPS, _STEPS)
def test_the_last_of_skipped_steps_is_followed_by_one_that_is_not(
    pairs: list[list[int]], step: int, max_steps: int
) -> None:
    config = TrainConfig(skip_steps=pairs, max_steps=max_steps)
    assume(config.skips(step) and step <= max_steps)
    last = config.last_skipped(step)
    assert all(config.skips(each) for each in range(step, last + 1))
    assert last == max_steps or not config.skips(last + 1)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("compute", "float16", "needs a loss scaler"),
        ("compute", "fp8", "but not trained ones"),
        ("storage", "float8_e4m3fn", "but not trained ones"),
        ("storage", "bfloat16", "rounded stochastically"),
        ("master", "bfloat16", "rounded stochastically"),
        ("weights", "bf16", "rounded stochastically"),
        ("autoencoder", "float16", "exceed the range of float16"),
        ("time", "bfloat16", "999 into 1000"),
        ("compute", "bf16", "unknown name"),
    ],
)
def test_dtypes_that_cannot_train_are_refused_with_the_reason(key: str, value: str, reason: str) -> None:
    """By the key that was given, with what to write."""
    with pytest.raises(UserError, match=reason) as caught:
        recipe_file.parse(recipe(precision={key: value}))
    assert (caught.value.field, caught.value.value) == (f"precision.{key}", value)
    assert caught.value.remedy


def test_a_misspelt_key_of_precision_is_still_one() -> None:
    """What is neither a key nor known to be fixed is told as any other mistake."""
    with refused("unknown-key", "precision.compte", says='did you mean "compute"') as caught:
        recipe_file.parse(recipe(precision={"compte": "float16"}))
    assert caught.value.problem == "there is no such key"


@pytest.mark.parametrize(
    ("keys", "field"),
    [
        ({"clip_losses": "auto", "clip_losses_every": 50}, "train.clip_losses_every"),
        ({"clip_losses_every": 50}, "train.clip_losses_every"),
        ({"clip_losses": 0}, "train.clip_losses"),
        ({"clip_losses": "sometimes"}, "train.clip_losses"),
    ],
)
def test_measurements_of_clips_are_a_number_or_chosen(keys: dict[str, object], field: str) -> None:
    with pytest.raises(UserError) as caught:
        recipe_file.parse(recipe(train={"max_steps": 9, **keys}))
    assert str(caught.value.field).startswith(field)
    assert recipe_file.parse(recipe(train={"max_steps": 9, "clip_losses": 4, "clip_losses_every": 50}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("betas", [0.9]),
        ("betas", [0.9, 0.999, 0.9999]),
        ("betas", [0.9, 1.0]),
        ("betas", [0.0, 0.9]),
        ("eps", 1e-60),
        ("threads", 100_000),
    ],
)
def test_numbers_that_no_optimizer_and_no_process_can_work_with(key: str, value: object) -> None:
    """An eps of 0 in float32 gives weights of NaN where there is no gradient."""
    with pytest.raises(UserError) as caught:
        recipe_file.parse(recipe(train={"max_steps": 9, "optimizer": "schedulefree", key: value}))
    assert (caught.value.field, caught.value.value) == (f"train.{key}", value)
    assert caught.value.remedy.startswith("give ")
