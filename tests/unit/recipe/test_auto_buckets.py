"""Entries left to the data are proposed once, and a run keeps them until it is told otherwise."""

from __future__ import annotations

import shutil
from pathlib import Path

import prepare_files as made
import pytest
from refused import refused

from reelworks.core import results, toml
from reelworks.data.run.folder import RunFolder
from reelworks.training.plan import plan_forecast
from reelworks.training.recipe import recipe_file


@pytest.fixture(scope="module")
def footage(tmp_path_factory):
    path = tmp_path_factory.mktemp("auto")
    for i in range(3):
        made.picture(path / f"{i}.png", (96, 128), i)
    for i, frames in enumerate([40, 40, 12]):
        made.clip(path / f"{i}.mp4", frames)
    return path


@pytest.fixture
def folder(footage, tmp_path):
    shutil.copytree(footage, tmp_path / "data")
    return tmp_path


def recipe(folder, buckets="auto", **changes):
    return made.recipe(folder, bucket=[], buckets=buckets, **changes)


def begin_run(data):
    """What the first start of a run leaves: its resolved recipe."""
    file = RunFolder(Path(data.recipe.output)).recipe_file
    file.parent.mkdir(exist_ok=True)
    file.write_text(recipe_file.dump(data.recipe), encoding="utf-8")


def grow(folder):
    for i in range(6):
        made.picture(folder / "data" / f"large-{i}.png", (256, 256), i)


def names(data):
    return [str(entry) for entry in data.table.entries]


def test_all_clips_have_a_place_and_the_recipe_then_says_where(folder):
    data = made.opened(recipe(folder))
    assert len(data.entries(0)) == len(data.rows) == 6
    assert data.recipe.buckets.entries == "keep"
    assert [f"{e.resolution} ×{e.num_frames}" for e in data.recipe.bucket] == names(data)
    assert recipe_file.parse(toml.parse(recipe_file.dump(data.recipe))) == data.recipe


def test_a_run_goes_on_with_the_entries_that_it_began_with(folder):
    """The catalog grew, the recipe still says auto: same entries, and a line that says how to have others."""
    first = made.opened(recipe(folder))
    begin_run(first)
    grow(folder)
    later = made.opened(recipe(folder))
    assert later.recipe.bucket == first.recipe.bucket
    assert "--set buckets.entries=refresh" in later.chosen.lines[0]
    assert len(later.rows) > len(first.rows)


@pytest.mark.parametrize(
    "buckets",
    [{"entries": "refresh"}, {"entries": "auto", "max_tokens": 100}, {"entries": "auto", "max_batch_size": 1}],
)
def test_entries_change_when_asked(folder, buckets):
    begin_run(made.opened(recipe(folder)))
    grow(folder)
    later = made.opened(recipe(folder, buckets))
    assert not later.chosen.kept
    most = later.recipe.buckets.max_tokens
    assert all(b.tokens * b.batch_size <= most for b in later.table.buckets)
    if buckets["entries"] == "refresh":
        assert "256px ×1" in names(later)


def test_entries_written_by_hand_are_not_kept_as_proposed(folder):
    """A run that began with the recipe's own entries, whose recipe then says auto, has them proposed."""
    begin_run(made.opened(made.recipe(folder)))
    assert not made.opened(recipe(folder)).chosen.kept


def test_kept_entries_plan_as_the_same_ones_written_out(folder):
    """Where entries come from is not part of what shapes a plan."""
    data = made.opened(recipe(folder))
    written = data.recipe.model_copy(update={"buckets": data.recipe.buckets.model_copy(update={"entries": "recipe"})})
    again = type(data).open(written)
    assert again.chosen is None
    assert again.plan_spec(2, 1).digest() == data.plan_spec(2, 1).digest()


def test_the_forecast_says_what_was_chosen_and_why(folder):
    made.picture(folder / "data" / "tiny.png", (8, 8))
    made.opened(recipe(folder))
    told = results.as_json(plan_forecast.forecast(recipe(folder), 1))["chosen_buckets"]
    assert not told["kept"]
    assert (told["reached"], told["clips"]) == (6, 7)
    assert all(entry["why"] in line for entry, line in zip(told["entries"], told["lines"][1:], strict=True))
    assert "6 of 7 clips fit" in told["lines"][0]


def test_no_clip_to_propose_for_is_told_with_the_reasons(tmp_path):
    made.picture(tmp_path / "data" / "a.png", caption=None)
    made.picture(tmp_path / "data" / "b.png", (8, 8))
    with refused("no-clip-to-propose-from", "buckets", says="1 smaller than any bucket, 1 no_caption") as caught:
        made.opened(recipe(tmp_path))
    assert caught.value.field == "buckets"
