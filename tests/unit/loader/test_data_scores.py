"""Scores of a list decide which clips are trained and stand in their captions; wrong names are refused."""

import csv

import prepare_files as files
import pyarrow.compute as pc
import pytest
from pyarrow import parquet
from refused import refused

from reelworks.core.errors import UserError
from reelworks.data.buckets.assign import Reason
from reelworks.data.loader import decode_requests, left_out
from reelworks.training.plan import rejections
from reelworks.training.recipe import dataset
from reelworks.training.recipe.dataset import RecipeData

FORM = "{text} aesthetic score: {aes:.1f}, motion score: {flow:.0f}."
SCORES = {"a": ("5.25", "0"), "b": ("4", "3"), "c": ("", "7"), "d": ("6", "")}


@pytest.fixture
def listed(tmp_path):
    """A dataset of four pictures as a list, with what else its entry has; and the same as a folder."""
    for name in SCORES:
        files.picture(tmp_path / "data" / f"{name}.png", grey=ord(name))
    write(tmp_path, SCORES)

    def recipe(**entry):
        return files.recipe(tmp_path, dataset=[{"path": str(tmp_path / "data" / "meta.csv"), **entry}])

    return recipe


def write(folder, scores):
    with (folder / "data" / "meta.csv").open("w", newline="") as f:
        rows = [(f"{name}.png", "" if name == "d" else name, *both) for name, both in scores.items()]
        csv.writer(f).writerows([("path", "text", "aes", "flow"), *rows])


def by_name(data, values):
    return dict(zip((path[0] for path in data.rows.path.to_pylist()), values, strict=True))


def test_clips_are_filtered_by_scores_and_told_why(listed):
    """Without the score a clip is left out as filtered, and the reason says that it has none."""
    data = files.opened(listed(filter="aes > 4.5"))
    excluded = by_name(data, data.excluded.tolist())
    assert excluded == {"a": Reason.NONE, "b": Reason.FILTERED, "c": Reason.FILTERED, "d": Reason.NO_CAPTION}
    told = rejections.named(data, left_out.by_reason(*data.assignment(0)))
    assert [one.detail for one in told["filtered"]] == [
        "aes 4 <= 4.5; aes >= 4 would take it",
        "aes > 4.5: the clip has no aes",
    ]
    assert "in its list" in told["no_caption"][0].detail


def test_the_table_of_clips_left_out_has_the_failed_parts_and_the_limits_that_would_take_them(listed, tmp_path):
    """The whole filter with these limits takes the clip; the record of a run says the same when all else is gone."""
    made = listed(filter="2 < aes <= 5 and flow < 5 and path != 'a.png'")
    data = files.opened(made)
    rejections.write(tmp_path / "left-out.parquet", data, 0)
    expected = {
        "a.png": ("aes <= 5 and path != 'a.png'", None),
        "c.png": ("2 < aes and aes <= 5 and flow < 5", None),
    }
    columns = ("path", "failed_filter", "limits_that_take")

    def told(file):
        table = parquet.read_table(file).filter(pc.field("reason") == "filtered").select(columns).to_pylist()
        return {row["path"]: (row["failed_filter"], row["limits_that_take"]) for row in table}

    assert told(tmp_path / "left-out.parquet") == expected
    loose = listed(filter="aes > 4.5 and flow > 2")
    rejections.write(tmp_path / "left-out.parquet", files.opened(loose), 0)
    assert told(tmp_path / "left-out.parquet") == {
        "a.png": ("flow > 2", "flow >= 0"),
        "b.png": ("aes > 4.5", "aes >= 4"),
        "c.png": ("aes > 4.5", None),
    }


def test_captions_tell_the_scores_that_a_clip_has(listed):
    data = files.opened(listed(caption=FORM))
    shown = {
        name: decode_requests.caption_of_row(data, row) for name, row in by_name(data, range(4)).items() if name != "d"
    }
    assert shown == {
        "a": "a aesthetic score: 5.2, motion score: 0.",
        "b": "b aesthetic score: 4.0, motion score: 3.",
        "c": "c motion score: 7.",
    }


@pytest.mark.parametrize(
    "entry", [{"filter": "eas > 4"}, {"caption": "{text} {eas:.1f}."}, {"filter": "aes > 1", "caption": "{eas}"}]
)
def test_a_name_that_no_clip_has_is_refused_with_the_nearest(listed, entry):
    """It shows once the list is read, before anything is planned; a former version is read as it was."""
    recipe = listed(**entry)
    dataset.scan_recipe(recipe)
    with pytest.raises(UserError) as caught:
        RecipeData.open(recipe)
    assert "eas" in caught.value.problem
    assert 'did you mean "aes"?' in caught.value.remedy
    assert RecipeData.open(recipe, 1).rows is not None


def test_a_score_belongs_to_its_dataset(listed, tmp_path):
    """Another dataset of the catalog does not lend its scores."""
    both = [
        {"path": str(tmp_path / "data" / "meta.csv"), "filter": "aes > 4.5"},
        {"path": str(tmp_path / "data"), "name": "folder"},
    ]
    assert (files.opened(files.recipe(tmp_path, dataset=both)).excluded == Reason.NONE).sum() == 1 + 4
    other = tmp_path / "data" / "other.csv"
    other.write_text("path\na.png\n", encoding="utf-8")
    both[1] = {"path": str(other), "filter": "aes > 4.5"}
    with refused("filter-invalid", "dataset.filter", says="`aes` is not a column"):
        files.opened(files.recipe(tmp_path, dataset=both))


def test_a_changed_score_changes_the_data_and_not_what_shapes_a_plan(listed, tmp_path):
    """The data's digest tells it, as it tells a changed caption; where the files lie shapes nothing."""
    before = files.opened(listed())
    write(tmp_path, SCORES | {"b": ("9", "3")})
    after = files.opened(listed(root=str(tmp_path / "data")))
    assert before.digest != after.digest
    assert before.plan_spec(1, 1).digest() == after.plan_spec(1, 1).digest()
    assert sorted(before.rows.uid) == sorted(after.rows.uid)
