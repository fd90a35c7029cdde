"""Each clip is used once in an epoch at each resolution and length that its dataset names and it fills."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import numpy as np
import prepare_files as files
import pytest
from refused import refused

from reelworks.annexes.page import clips
from reelworks.core import toml_none
from reelworks.data.buckets.assign import Reason
from reelworks.data.loader import left_out
from reelworks.training.recipe import recipe_file

BUCKETS = [
    {"resolution": "32px", "num_frames": [1, 5, 9], "batch_size": 2},
    {"resolution": "64px", "num_frames": [1, 5], "batch_size": 2},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("uses")
    for number, side in enumerate((96, 96, 40)):
        files.picture(path / "data" / f"{number}.png", size=(side, side))
    files.clip(path / "data" / "long.mp4", num_frames=12, size=(96, 96))
    files.clip(path / "data" / "short.mp4", num_frames=6, size=(96, 96))
    return path


def opened(folder, *, data: dict[str, Any] | None = None, **keys: Any):
    dataset = {"path": str(folder / "data")} | keys
    return files.opened(files.recipe(folder, dataset=[dataset], bucket=BUCKETS, data=data or {}))


def uses(data, epoch: int = 0) -> Counter[tuple[str, str]]:
    """File and bucket entry of each use that an epoch plans."""
    plan = data.plan(data.plan_spec(2, 1), epoch)
    names = [data.rows.path[row].as_py() for row in data.rows_at(plan.ordinal[plan.is_first_use])]
    entries = [str(data.table.entries[data.table.buckets[b].entry]) for b in plan.bucket[plan.is_first_use].tolist()]
    return Counter(zip(names, entries, strict=True))


PICTURES = {("0.png", "64px ×1"): 1, ("1.png", "64px ×1"): 1, ("2.png", "32px ×1"): 1}
SMALLER = {("0.png", "32px ×1"): 1, ("1.png", "32px ×1"): 1}


def test_without_them_a_clip_takes_the_largest_entry(folder):
    assert uses(opened(folder)) == {**PICTURES, ("long.mp4", "64px ×5"): 1, ("short.mp4", "64px ×5"): 1}


def test_the_page_shows_each_clip_at_the_first_size_that_it_fills(folder):
    """And not as one that is left out, though the small picture fills no use but its second."""
    data = opened(folder, resolutions=["64px", "32px"])
    view = clips._assign(data)
    assert view.reason.tolist() == [Reason.NONE] * len(data.rows)
    entries = [str(data.table.entries[data.table.buckets[b].entry]) for b in view.bucket.tolist()]
    assert set(zip(data.rows.path.to_pylist(), entries, strict=True)) == uses(opened(folder)).keys()


def test_each_resolution_that_a_clip_fills_uses_it_once(folder):
    videos = {
        ("long.mp4", "64px ×5"): 1,
        ("long.mp4", "32px ×9"): 1,
        ("short.mp4", "64px ×5"): 1,
        ("short.mp4", "32px ×5"): 1,
    }
    data = opened(folder, resolutions=["64px", 32])
    assert uses(data) == {**PICTURES, **SMALLER, **videos}
    assert uses(data, epoch=3) == uses(data)
    assert uses(opened(folder, resolutions=["32px"])) == {
        **SMALLER,
        ("2.png", "32px ×1"): 1,
        ("long.mp4", "32px ×9"): 1,
        ("short.mp4", "32px ×5"): 1,
    }


def test_each_length_uses_a_video_once_and_pictures_have_one(folder):
    videos = {("long.mp4", "64px ×5"): 1, ("long.mp4", "32px ×9"): 1, ("short.mp4", "64px ×5"): 1}
    assert uses(opened(folder, lengths=[5, 9])) == {**PICTURES, **videos}
    both = {("long.mp4", "64px ×5"): 1, ("long.mp4", "32px ×5"): 1, ("long.mp4", "32px ×9"): 1}
    both |= {("short.mp4", "64px ×5"): 1, ("short.mp4", "32px ×5"): 1}
    assert uses(opened(folder, resolutions=["64px", "32px"], lengths=[5, 9])) == {**PICTURES, **SMALLER, **both}


@pytest.mark.parametrize("kind", ["hold", "loop"])
def test_a_short_video_is_extended_to_the_shortest_length_alone(folder, kind):
    """As a clip without lengths is; those that are long enough for one have no use at a longer one."""
    extended = {"short_clips": kind}
    assert uses(opened(folder, lengths=[5, 9], data=extended)) == uses(opened(folder, lengths=[5, 9]))
    longer = {**PICTURES, ("long.mp4", "32px ×9"): 1, ("short.mp4", "32px ×9"): 1}
    assert uses(opened(folder, lengths=[9], data=extended)) == longer
    resolutions = {"resolutions": ["64px", "32px"], "lengths": [9]}
    assert uses(opened(folder, **resolutions, data=extended)) == {**longer, **SMALLER}


def test_merged_clips_keep_the_resolution_that_they_are_used_at(folder):
    """Else a clip would be used twice at the smaller one."""
    keys = {"dataset": [{"path": str(folder / "data"), "resolutions": ["64px", "32px"]}]}
    found = [
        uses(files.opened(files.recipe(folder, **keys, bucket=BUCKETS, buckets={"incomplete_batch": way})))
        for way in ("merge", "partial")
    ]
    assert found[0] == found[1]


def test_a_clip_whose_uses_have_several_reasons_is_left_out_for_one(folder):
    """Of a length that waits for a draw and one that is too long, the first is the reason."""
    bucket = [{"resolution": "32px", "num_frames": [1, 5, 9], "batch_size": 2, "keep_prob": [1.0, 0.001, 1.0]}]
    dataset = [{"path": str(folder / "data"), "lengths": [5, 9]}]
    data = files.opened(files.recipe(folder, dataset=dataset, bucket=bucket))
    found = {one.reason: data.rows.labels(one.row) for one in left_out.by_reason(*data.assignment(0))}
    assert found == {Reason.NOT_DRAWN: ["data/short.mp4"]}


def test_repeats_count_for_each_and_may_be_a_fraction(folder):
    once = uses(opened(folder, resolutions=["64px", "32px"]))
    assert uses(opened(folder, resolutions=["64px", "32px"], repeats=2)) == dict.fromkeys(once, 2)
    data = opened(folder, resolutions=["64px", "32px"], repeats=1.5)
    found = [uses(data, epoch) for epoch in range(60)]
    assert all(set(counts) == set(once) and set(counts.values()) <= {1, 2} for counts in found)
    assert 1.35 < np.mean([list(counts.values()) for counts in found]) < 1.65


def test_a_use_that_a_clip_does_not_fill_is_no_clip_left_out(folder):
    data = opened(folder, resolutions=["64px", "32px"])
    result, row = data.assignment(0)
    small = [data.rows.path[row[i]].as_py() for i in np.flatnonzero(result.reason == Reason.TOO_SMALL)]
    assert small == ["2.png"]
    from reelworks.training.plan.plan import plan

    assert plan(data, world_size=1).clips == 9
    assert "too_small" not in plan(data, world_size=1).rejected.by_reason()


def test_validation_uses_a_held_out_clip_once(folder):
    recipe = files.recipe(
        folder,
        dataset=[{"path": str(folder / "data"), "resolutions": ["64px", "32px"]}],
        bucket=BUCKETS,
        validation={"split": 0.5},
    )
    held = files.opened(recipe).held_out()
    assert len(held) > 0
    assert len(np.unique(held.uid)) == len(held)


def test_plans_without_them_keep_their_digests(folder):
    """The digest of a plan's settings is that of a recipe that has no such key."""
    plain = opened(folder)
    assert "resolutions" not in str(plain.plan_spec(2, 1))
    assert plain.plan_spec(2, 1).digest() != opened(folder, resolutions=["64px"]).plan_spec(2, 1).digest()


def test_a_default_that_is_written_out_is_the_same_plan(folder):
    """Of all keys, and of those whose default is the value of another one."""
    plain = files.recipe(folder, bucket=[{"resolution": "32px", "num_frames": 5}])
    values = toml_none.to_toml(plain)
    recipes = [recipe_file.parse(copy.deepcopy(values))]
    values["dataset"][0]["name"] = "data"
    values["bucket"][0] |= {"num_frames": [5], "batch_size": 1, "keep_prob": [1.0], "sequence_degree": 1}
    values["buckets"]["token_families"] = False
    recipes += [recipe_file.parse(values)]
    assert recipes[0] == plain != recipes[1]
    specs = [files.opened(recipe).plan_spec(2, 1) for recipe in (plain, *recipes)]
    assert len({spec.digest() for spec in specs}) == 1
    values["bucket"][0]["keep_prob"] = 0.5
    assert files.opened(recipe_file.parse(values)).plan_spec(2, 1).digest() != specs[0].digest()


@pytest.mark.parametrize(
    ("keys", "field", "code"),
    [
        ({"resolutions": ["128px"]}, "dataset.resolutions", "uses-of-no-entry"),
        ({"resolutions": ["large"]}, "dataset.resolutions", "unknown-resolution"),
        ({"resolutions": ["64px", "64px"]}, "dataset.resolutions", "named-twice"),
        ({"lengths": [7]}, "dataset.lengths", "uses-of-no-entry"),
    ],
)
def test_a_size_that_no_entry_has_is_refused(folder, keys, field, code):
    with refused(code, field):
        opened(folder, **keys)


def test_proposed_entries_need_not_have_the_sizes(folder):
    recipe = files.recipe(folder, dataset=[{"path": str(folder / "data"), "resolutions": ["64px"]}], bucket=BUCKETS)
    values = recipe.model_dump() | {"bucket": [], "buckets": {"entries": "auto"}}
    with refused("entries-given-and-proposed", "dataset.resolutions"):
        recipe_file.parse({key: value for key, value in values.items() if value is not None})
