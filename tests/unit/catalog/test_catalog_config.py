from __future__ import annotations

import pytest
from pydantic import ValidationError

from reelworks.catalog.config import DatasetConfig


def test_the_folder_names_the_dataset() -> None:
    assert DatasetConfig(path="data/dogs/").dataset_name == "dogs"
    assert DatasetConfig(path="data/dogs", name="pets").dataset_name == "pets"


@pytest.mark.parametrize(
    "values", [{"path": ""}, {"path": "a", "repeats": 0}, {"path": "a", "name": ""}, {"path": "a", "reps": 2}]
)
def test_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        DatasetConfig.model_validate(values)
