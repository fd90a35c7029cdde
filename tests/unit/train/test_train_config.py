"""Keys of `[train]` that cannot be are refused by their own name."""

from __future__ import annotations

import pytest

from reelworks.core.errors import UserError
from reelworks.recipe import load as recipes


@pytest.mark.parametrize("pair", [[3, 2], [0, 2], [3], [1, 2, 3]])
def test_steps_to_skip_are_pairs_from_first_to_last(pair: list[int]) -> None:
    """The error names the pair that is none, not the whole table."""
    with pytest.raises(UserError) as caught:
        recipes.parse(
            {
                "version": 1,
                "output": "run",
                "dataset": [{"path": "data"}],
                "bucket": [{"resolution": "48px", "num_frames": 1}],
                "model": {"name": "stdit3-tiny"},
                "train": {"max_steps": 9, "skip_steps": [[1, 1], pair]},
            }
        )
    assert (caught.value.field, caught.value.value) == ("train.skip_steps", pair)
    assert caught.value.remedy
