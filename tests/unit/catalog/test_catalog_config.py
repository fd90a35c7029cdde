from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError
from refused import refused

from reelworks.core.config import meanings
from reelworks.data.catalog.config import DatasetConfig, Source
from reelworks.data.catalog.filter_expression import NUMBERS, TEXTS
from reelworks.data.catalog.sources import KINDS
from reelworks.data.catalog.store import companions


def test_the_folder_names_the_dataset() -> None:
    assert DatasetConfig(path="data/dogs/").dataset_name == "dogs"
    assert DatasetConfig(path="data/dogs", name="pets").dataset_name == "pets"


def test_a_dataset_is_known_in_processes_of_another_folder() -> None:
    assert DatasetConfig(path=".").absolute().dataset_name == Path.cwd().name
    address = DatasetConfig(path="s3://bucket/dogs")
    assert address.absolute() == address


def test_numbers_are_sides_of_squares_however_they_are_written() -> None:
    assert DatasetConfig(path="a", resolutions=[64, "128", "480p"]).resolutions == ["64px", "128px", "480p"]


def test_the_columns_that_filters_and_captions_can_name_are_told() -> None:
    told = meanings(DatasetConfig)
    assert ", ".join((*NUMBERS, *TEXTS)) in told["filter"]
    assert ", ".join(NUMBERS) in told["caption"]


def test_a_list_names_its_dataset_and_what_its_scores_are_is_asked_later() -> None:
    """Of a folder no score is known, so that a wrong name is refused at once; of a list any may be one."""
    form, filter_ = "{text} score: {aes:.1f}.", "aes > 4.5 and flow < 3"
    dataset = DatasetConfig(path="lists/Meta.CSV", root="/data", caption=form, filter=filter_)
    assert dataset.place == Source("Meta", Path("/data"), Path("lists/Meta.CSV"))
    assert DatasetConfig(path="lists/m.jsonl", name="n").place == Source("n", Path("lists"), Path("lists/m.jsonl"))
    for wrong in ({"caption": form}, {"filter": filter_}, {"root": "/data"}):
        with pytest.raises(ValidationError, match="dataset"):
            DatasetConfig.model_validate({"path": "lists"} | wrong)
    for wrong in ({"caption": "{aes:.1q}"}, {"filter": "aes > 'x'"}):
        with pytest.raises(ValidationError, match="dataset"):
            DatasetConfig.model_validate({"path": "m.csv"} | wrong)


@pytest.mark.parametrize("kind", KINDS)
def test_names_of_companions_are_refused_wherever_they_come_from(kind: str) -> None:
    """Clips of such a name would be those of no dataset."""
    for path, name in (
        ("shots", f"x:{kind}"),
        (f"x:{kind}", None),
        (f"s3://b/x:{kind}", None),
        (f"x:{kind}.csv", None),
    ):
        with refused("dataset-name-reserved", "dataset.name", says=f"x:{kind}"):
            _ = DatasetConfig(path=path, name=name).dataset_name
    assert DatasetConfig(path=f"x:{kind}", name=kind).dataset_name == kind
    (own,) = companions.sources(Source("clips", Path("clips")), {"mask": f"x:{kind}"})
    assert own.name == "clips:mask", "whatever their folder is called"


@pytest.mark.parametrize(
    "values", [{"path": ""}, {"path": "a", "repeats": 0}, {"path": "a", "name": ""}, {"path": "a", "reps": 2}]
)
def test_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        DatasetConfig.model_validate(values)
