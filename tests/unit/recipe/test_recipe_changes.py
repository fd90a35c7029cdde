"""What is told of a recipe that differs from the one that a run kept: what a person wrote otherwise, in the words of the recipe."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_recipe
import tomli_w

from reelworks.core import toml_none
from reelworks.data.schedule.cursor import StageStart
from reelworks.training.loop.stages import as_written
from reelworks.training.recipe import diff, recipe_file
from reelworks.training.recipe.diff import KeyChange
from reelworks.training.recipe.stages import StageConfig


@pytest.mark.parametrize("lost", ["train.weight_decay", "objective.noise_offset", "data.resize"])
def test_a_key_that_the_version_of_a_kept_recipe_did_not_have_is_no_change(tmp_path: Path, lost: str) -> None:
    now = recipe_file.parse(tiny_recipe.least(seed=3))
    table, key = lost.split(".")
    kept = toml_none.to_toml(now)
    del kept[table][key]
    kept["seed"] = 2
    (tmp_path / "kept.toml").write_text(tomli_w.dumps(kept), encoding="utf-8")
    assert diff.since(tmp_path / "kept.toml", now) == [KeyChange("seed", 2, 3)]
    kept["key_of_former_versions"] = 1  # what cannot be read as a recipe is compared as it stands
    (tmp_path / "kept.toml").write_text(tomli_w.dumps(kept), encoding="utf-8")
    assert {change.key for change in diff.since(tmp_path / "kept.toml", now)} == {
        "seed",
        "key_of_former_versions",
        lost,
    }


@pytest.mark.parametrize(("key", "first"), [("steps", 10), ("epochs", 2), ("clips", 40)])
def test_the_end_of_a_stage_is_told_as_the_stage_says_it(key: str, first: int) -> None:
    """A run counts from its own start, and a stage from the stage's."""
    values = tiny_recipe.least(stage=[{"name": "a", "steps": 10}, {"name": "b", key: 5}], train={})
    start = StageStart("b", step=10, epoch=2, clips=40)
    before = recipe_file.of_stage(recipe_file.parse(values), 1, start)
    whole = recipe_file.parse({**values, "stage": [values["stage"][0], {"name": "b", key: 7}]})
    after = recipe_file.of_stage(whole, 1, start)
    changes = diff.changes(toml_none.to_toml(before), toml_none.to_toml(after))
    assert changes == [KeyChange(f"train.max_{key}", first + 5, first + 7)]
    assert as_written(changes, whole.stage[1], start) == [KeyChange(f"stage.b.{key}", 5, 7)]
    assert as_written(changes, None, StageStart()) == changes


def test_an_end_that_a_stage_says_no_more_is_told_as_the_stage_said_it() -> None:
    changes = [KeyChange("train.max_epochs", 7, diff.NOT_SET), KeyChange("train.max_steps", diff.NOT_SET, 15)]
    told = as_written(changes, StageConfig(name="b", steps=5), StageStart("b", step=10, epoch=2))
    assert told == [KeyChange("stage.b.epochs", 5, diff.NOT_SET), KeyChange("stage.b.steps", diff.NOT_SET, 5)]
