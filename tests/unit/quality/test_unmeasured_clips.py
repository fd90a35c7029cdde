"""Clips that were never measured are not taken for clips without a value."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import prepare_files
import pytest
from refused import refused
from test_measure_catalog import write

from reelworks.annexes.quality import sampling
from reelworks.annexes.quality.run import measure_catalog
from reelworks.data.buckets.assign import Reason
from reelworks.data.catalog.store import kept_measures
from reelworks.training.recipe import dataset as recipe_dataset
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.recipe.recipe import Recipe


def recipe(tmp_path: Path, *names: str, measures: tuple[str, ...] = (), **entry: Any) -> Recipe:
    datasets = [{"path": str(tmp_path / name), "missing_caption": "a scene", **entry} for name in names]
    return prepare_files.recipe(tmp_path, dataset=datasets, data={"measures": list(measures)})


@pytest.mark.parametrize(
    ("code", "entry"),
    [
        ("not-measured", {"filter": "sharpness >= 0 and (kind == 'image' or motion > 2)"}),
        ("not-measured", {"caption": "{text} {sharpness:.1f}"}),
        ("duplicates-not-measured", {"duplicates": "best"}),
    ],
)
@pytest.mark.slow
def test_a_dataset_that_was_never_measured_is_refused_and_further_clips_are_told(
    tmp_path: Path, decoded: list[str], caplog: pytest.LogCaptureFixture, code: str, entry: dict[str, Any]
) -> None:
    names = ("sharpness", "motion", "duplicates")
    write(tmp_path / "a" / "0.png", 0)
    recipe_dataset.scan_recipe(recipe(tmp_path, "a", measures=names))
    write(tmp_path / "b" / "1.png", 1)
    for also in (("a", "b"), ("b",)):
        recipe_dataset.scan_recipe(made := recipe(tmp_path, *also, **entry))
        with refused(code, says="--only (duplicates|sharpness)"):
            RecipeData.open(made)
    measure_catalog(tmp_path / "run" / "catalog", names, workers=1)
    assert RecipeData.open(made).excluded.tolist() == [Reason.NONE]
    write(tmp_path / "b" / "2.png", 2)
    assert "not measured" not in caplog.text
    recipe_dataset.scan_recipe(made)
    assert "dataset b: 1 of 2 clips were not measured yet, and have no" in caplog.text
    RecipeData.open(made)
    caplog.clear()
    measure_catalog(tmp_path / "run" / "catalog", names, workers=1)
    recipe_dataset.scan_recipe(made)
    assert RecipeData.open(made).excluded.tolist() == [Reason.NONE] * 2
    assert not caplog.text


def test_clips_without_a_value_are_no_trouble_whatever_is_scanned_later(
    tmp_path: Path, decoded: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    entry = {"filter": "kind == 'image' or motion > 2"}
    write(tmp_path / "a" / "0.png", 0)
    recipe_dataset.scan_recipe(recipe(tmp_path, "a", measures=("motion",), **entry))
    write(tmp_path / "b" / "1.png", 1)
    shutil.copy(tmp_path / "a" / "0.png", tmp_path / "a" / "copy.png")
    recipe_dataset.scan_recipe(recipe(tmp_path, "b"))
    recipe_dataset.scan_recipe(made := recipe(tmp_path, "a", **entry))
    assert RecipeData.open(made).excluded.tolist() == [Reason.NONE] * 2
    shutil.rmtree(tmp_path / "run" / "catalog" / kept_measures.NAME)
    assert RecipeData.open(made).excluded.tolist() == [Reason.NONE] * 2
    assert not caplog.text


def test_a_clip_that_could_not_be_measured_is_told_by_whoever_scans(
    tmp_path: Path, decoded: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    measure = sampling.measure

    def gone(request: sampling.MeasureRequest) -> sampling.Measurement:
        (tmp_path / "a" / "0.png").unlink(missing_ok=True)
        return measure(request)

    monkeypatch.setattr(sampling, "measure", gone)
    caplog.set_level(logging.INFO, "reelworks")
    for i in range(2):
        write(tmp_path / "a" / f"{i}.png", i)
    scanned = recipe_dataset.scan_recipe(recipe(tmp_path, "a", measures=("sharpness",)))
    (told,) = (line for line in caplog.messages if line.startswith("not measured: "))
    assert told == "not measured: a/0.png: No such file or directory"
    assert told in scanned.notes
