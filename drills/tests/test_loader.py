"""A few tries of the loader's drills; `python -m drills.borders loader` has hundreds."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from drills._borders import loader


@pytest.mark.parametrize("name", loader.DRILLS)
@pytest.mark.parametrize("number", range(2))
def test_a_drill_goes_right(name: str, number: int, tmp_path: Path) -> None:
    assert loader.DRILLS[name](random.Random(f"test-{number}"), tmp_path) == []
