"""From a folder of files to entries: each is planned, or named with its reason."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import prepare_files as files
import pytest
from refused import refused

from reelworks.core import results
from reelworks.core.errors import UserError
from reelworks.data.buckets.assign import Reason
from reelworks.data.catalog.store.reader import CatalogReader
from reelworks.data.loader import position
from reelworks.data.schedule.cost_fit import BatchTime
from reelworks.training.plan import plan_forecast, plan_report
from reelworks.training.recipe import dataset
from reelworks.training.recipe.dataset import RecipeData

GOOD = ["a.png", "b.png", "c.png", "d.png", "wide.png", "long.mp4", "just.mp4"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some good files, and one for each reason not to train."""
    root = tmp_path_factory.mktemp("prepare")
    data = root / "data"
    for i, name in enumerate(GOOD[:4]):
        files.picture(data / name, grey=i)
    files.picture(data / "wide.png", (64, 96), grey=9)
    files.picture(data / "tiny.png", (16, 16))
    files.picture(data / "mute.png", caption=None)
    files.picture(data / "silent.png", grey=99, caption="  ")
    (data / "broken.png").write_text("no picture", encoding="utf-8")
    files.clip(data / "long.mp4", 20)
    files.clip(data / "just.mp4", 9)
    files.clip(data / "short.mp4", 8)
    dataset.scan_recipe(files.recipe(root))
    return root


def paths(data: RecipeData, ordinals: np.ndarray) -> list[str]:
    where = np.searchsorted(data.rows.ordinal, ordinals)
    return [data.rows.path[int(i)].as_py() for i in where]


def test_good_files_become_entries_of_their_shape(folder: Path) -> None:
    data = RecipeData.open(files.recipe(folder))
    entries = data.entries(0)
    assert sorted(paths(data, entries.ordinal)) == sorted(GOOD)
    frames = [data.table.buckets[b].shape.num_frames for b in entries.bucket]
    for name, count in zip(paths(data, entries.ordinal), frames, strict=True):
        assert count == (9 if name.endswith("mp4") else 1)
    assert entries.copy.tolist() == [0] * len(GOOD)


def test_every_other_file_is_named_with_its_reason(folder: Path) -> None:
    data = RecipeData.open(files.recipe(folder))
    spec = data.plan_spec(2, 1)
    told = results.as_json(plan_report.summarise(data, spec, data.plan(spec, 0), world=2))
    reasons = {reason: [f["path"] for f in found] for reason, found in told["reasons"].items()}
    assert reasons == {
        "unreadable": ["data/broken.png"],
        "no_caption": ["data/mute.png", "data/silent.png"],
        "too_short": ["data/short.mp4"],
        "too_small": ["data/tiny.png"],
    }
    details = {f["path"]: f["detail"] for found in told["reasons"].values() for f in found}
    assert "not a picture" in details["data/broken.png"]
    assert details["data/mute.png"] == "no caption, or none that the scan can use, in its list or a file beside it"
    assert details["data/silent.png"] == "the caption is empty"
    assert details["data/short.mp4"] == "8 frames of 64 × 48; needs 9; nearest entry: 48px ×9"
    assert details["data/tiny.png"] == "1 frame of 16 × 16; nearest entry: 48px ×1"
    assert told["catalog"] == {"clips": 12, "videos": 3, "images": 8, "bad": 1}
    assert told["planned"] == sum(b["clips"] for b in told["buckets"]) == len(GOOD)


def test_a_summary_adds_up(folder: Path) -> None:
    for incomplete in ("partial", "pad"):
        made = files.recipe(folder, buckets={"incomplete_batch": incomplete, "aspect_ratios": ["4:3"]})
        data = RecipeData.open(made)
        spec = data.plan_spec(4, 2)
        plan = data.plan(spec, 0)
        told = results.as_json(plan_report.summarise(data, spec, plan, world=2))
        pictures, videos = (next(b for b in told["buckets"] if b["num_frames"] == n) for n in (1, 9))
        assert (pictures["clips"], pictures["micro_batches"], pictures["incomplete"]) == (5, 2, 1)
        assert (videos["clips"], videos["micro_batches"], videos["incomplete"]) == (2, 1, 0)
        assert pictures["global_batch"] == 12
        assert (told["micro_batches"], told["incomplete"], told["steps_per_epoch"]) == (3, 1, 1)
        assert told["steps_not_full"] == 1
        assert told["padding"] == (0 if incomplete == "partial" else 1 - 7 / 8)


def test_repeats_stand_in_an_epoch_as_copies(folder: Path) -> None:
    once = RecipeData.open(files.recipe(folder)).entries(0)
    made = files.recipe(folder, dataset=[{"path": str(folder / "data"), "repeats": 3}])
    entries = RecipeData.open(made).entries(0)
    assert len(entries) == 3 * len(once)
    for uid in once.uid:
        assert entries.copy[entries.uid == uid].tolist() == [0, 1, 2]


def test_which_clips_a_fraction_of_repeats_shows_again_is_drawn_in_each_epoch(folder: Path) -> None:
    """With 1.5, each clip is shown once in every epoch, and again in about half of them."""
    data = RecipeData.open(files.recipe(folder, dataset=[{"path": str(folder / "data"), "repeats": 1.5}]))
    epochs = [data.entries(epoch) for epoch in range(40)]
    clips = np.unique(epochs[0].uid)
    assert all(np.array_equal(np.sort(each.uid[each.copy == 0]), clips) for each in epochs)
    again = np.mean([np.isin(clips, each.uid[each.copy == 1]) for each in epochs], axis=0)
    assert (abs(again - 0.5) < 0.25).all()
    assert abs(again.mean() - 0.5) < 0.1


def test_each_dataset_has_its_own_repeats_and_others_of_the_catalog_stay_out(tmp_path: Path) -> None:
    for name, count in (("data", 2), ("more", 1), ("old", 2)):
        for i in range(count):
            files.picture(tmp_path / name / f"{i}.png")
    both = [{"path": str(tmp_path / "more"), "repeats": 2}, {"path": str(tmp_path / "data")}]
    files.opened(files.recipe(tmp_path, dataset=[*both, {"path": str(tmp_path / "old")}]))
    data = RecipeData.open(files.recipe(tmp_path, dataset=both))
    assert len(data.rows) == 3
    entries = data.entries(0)
    of = {
        name: [e for e, o in enumerate(entries.ordinal) if str(_root(data, o)).endswith(name)]
        for name in ("data", "more")
    }
    assert {name: sorted(entries.copy[where].tolist()) for name, where in of.items()} == {
        "data": [0, 0],
        "more": [0, 1],
    }
    both[0]["repeats"] = 1.5  # beside one with a whole number
    again = RecipeData.open(files.recipe(tmp_path, dataset=both))
    assert {len(again.entries(epoch)) for epoch in range(20)} == {3, 4}


def _root(data: RecipeData, ordinal: int) -> Path:
    return data.rows.file(int(np.searchsorted(data.rows.ordinal, ordinal))).parent


def test_frames_are_counted_at_the_rate_that_is_read(folder: Path) -> None:
    for values, names in (
        ({"frame_interval": 2}, ["long.mp4"]),  # 20 frames give 10
        ({"frame_interval": 3}, []),
        ({"fps": 12.0}, ["long.mp4"]),
        ({"fps": 48.0}, ["just.mp4", "long.mp4"]),
    ):
        data = RecipeData.open(files.recipe(folder, data=values))
        assert [p for p in sorted(paths(data, data.entries(0).ordinal)) if p.endswith("mp4")] == names


def test_held_out_clips_are_the_same_in_every_epoch(folder: Path) -> None:
    made = files.recipe(folder, validation={"split": 0.5}, dataset=[{"path": str(folder / "data"), "repeats": 2}])
    data = RecipeData.open(made)
    held = data.held_out()
    assert 0 < len(held) < len(GOOD)
    assert held.copy.tolist() == [0] * len(held)
    for epoch in range(3):
        trained = data.entries(epoch)
        assert not set(trained.uid.tolist()) & set(held.uid.tolist())
        assert set(trained.uid.tolist()) | set(held.uid.tolist()) == set(
            RecipeData.open(files.recipe(folder)).entries(0).uid.tolist()
        )
    few = files.recipe(folder, validation={"split": 0.5, "max_clips": 1})
    assert RecipeData.open(few).held_out().uid.tolist() == held.uid[:1].tolist()
    assignment, _ = data.assignment(0)
    assert (assignment.reason == Reason.HELD_OUT).sum() == 2 * len(held)


def test_the_next_epoch_goes_on_from_the_one_before(folder: Path) -> None:
    """With all that the run has counted, and as often begun again as before."""
    data = RecipeData.open(files.recipe(folder))
    spec = data.plan_spec(1, 1)
    first, skipped = position.next_epoch(data, spec, None, data_restarts=2, first=3)
    assert (first.key, first.clips, skipped) == ((2, 3, 0), 0, [])
    done = replace(first, counts=first.counts.add(5, 1, 0, 0), global_step=7)
    after, skipped = position.next_epoch(data, spec, done)
    assert (after.key, after.plan_step, after.global_step, after.clips, skipped) == ((2, 4, 0), 0, 7, 5, [])
    assert (after.counts.planned, after.counts.trained) == (after.plan.planned, 0)


def test_plans_are_made_once(folder: Path) -> None:
    data = RecipeData.open(files.recipe(folder))
    spec = data.plan_spec(2, 1)
    first = data.plan(spec, 0)
    assert data.plan(spec, 0) is first
    for epoch in range(1, 4):
        data.plan(spec, epoch)
    again = data.plan(spec, 0)
    assert again is not first
    assert again.digest() == first.digest()


def test_a_plan_reads_no_texts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of millions of clips take long; only a run's plan is checked by all that it depends on."""
    read: list[str] = []
    chunks = CatalogReader._chunks
    monkeypatch.setattr(
        CatalogReader,
        "_chunks",
        lambda self, alive, name, wanted: read.append(name) or chunks(self, alive, name, wanted),
    )
    data = RecipeData.open(files.recipe(folder))
    assert data.plan(data.plan_spec(2, 2), 0).num_steps
    assert not {"caption", "path", "fingerprint"} & {*read}
    assert data.digest == data.with_table(data.table).digest == RecipeData.open(files.recipe(folder)).digest
    assert {"caption", "fingerprint"} < {*read}


def test_the_spec_sees_what_shapes_a_plan_and_nothing_else(folder: Path) -> None:
    def digest(g: int = 4, **changes: object) -> str:
        return RecipeData.open(files.recipe(folder, **changes)).plan_spec(g, 1).digest()

    data = {"path": str(folder / "data")}
    shaping = [
        digest(2),
        digest(seed=1),
        digest(bucket=[{"resolution": "48px", "num_frames": [1, 9], "batch_size": [3, 1]}]),
        digest(bucket=[{"resolution": "48px", "num_frames": [1, 9], "batch_size": [3, 2], "keep_prob": 0.5}]),
        digest(buckets={"aspect_ratios": ["4:3"]}),
        digest(buckets={"aspect_ratios": ["4:3", "1:1"], "incomplete_batch": "pad"}),
        digest(data={"frame_interval": 2}),
        digest(dataset=[data | {"repeats": 2}]),
        digest(validation={"split": 0.1}),
    ]
    assert len({digest(), *shaping}) == 1 + len(shaping)
    same = [
        digest(train={"max_epochs": 9, "learning_rate": 1.0}),
        digest(data={"num_workers": 0}),
        digest(dataset=[{"path": str(folder / "x" / ".." / "data")}]),
        digest(dataset=[data | {"name": "data"}]),
    ]
    assert set(same) == {digest()}


def test_another_table_has_the_costs_of_its_own_buckets(folder: Path, tmp_path: Path) -> None:
    """Also where those of the former one were asked for."""
    names = [bucket.name for bucket in RecipeData.open(files.recipe(folder)).table.buckets]
    measured = tmp_path / "costs.json"
    measured.write_text(json.dumps(dict.fromkeys(names, 5.0)), encoding="utf-8")
    data = RecipeData.open(files.recipe(folder, cost={"measured": str(measured)}))
    assert data.measured_ms == dict.fromkeys(names, BatchTime(0.0, 5.0))
    smaller = [{"resolution": "32px", "num_frames": 1, "batch_size": 2}]
    other = data.with_table(RecipeData.open(files.recipe(folder, bucket=smaller)).table)
    with refused("cost-table-invalid", says="names none of the buckets"):
        other.plan_spec(2, 1)


def test_a_forecast_is_for_any_number_of_ranks(folder: Path) -> None:
    made = files.recipe(folder, train={"max_epochs": 1, "gradient_accumulation_steps": 2})
    told = results.as_json(plan_forecast.forecast(made, 3))
    assert (told["micro_batches_per_step"], told["same_bucket_run"], told["world"]) == (6, 3, 3)
    fixed = files.recipe(folder, train={"max_epochs": 1, "micro_batches_per_step": 8, "same_bucket_run": 4})
    assert plan_forecast.step_shape(fixed, 3) == (8, 4)
    uneven = files.recipe(folder, train={"max_epochs": 1, "micro_batches_per_step": 8})
    assert plan_forecast.step_shape(uneven, 3) == (8, 8)
    wrong = files.recipe(folder, train={"max_epochs": 1, "gradient_accumulation_steps": 2, "same_bucket_run": 4})
    with refused(
        "run-length-must-divide", "train.same_bucket_run", says="must divide micro_batches_per_step, which is 6"
    ) as caught:
        plan_forecast.step_shape(wrong, 3)
    assert (caught.value.field, caught.value.value) == ("train.same_bucket_run", 4)
    with refused("unknown-micro-batch-count", "train.micro_batches_per_step") as caught:
        plan_forecast.step_shape(files.recipe(folder, train={"max_epochs": 1}), 10**9)
    assert caught.value.field == "train.micro_batches_per_step"


def test_an_epoch_without_steps_lists_every_entry_and_three_cures(folder: Path) -> None:
    made = files.recipe(
        folder,
        bucket=[
            {"resolution": "256px", "num_frames": [1, 9]},
            {"resolution": "48px", "num_frames": 9, "keep_prob": 0.0},
        ],
    )
    with pytest.raises(UserError) as caught:
        results.as_json(plan_forecast.forecast(made, 1))
    problem = caught.value.problem
    for entry in ("256px ×9: 0 clips", "256px ×1: 0 clips", "48px ×9: 0 clips"):
        assert entry in problem
    for reason in ("too_small: 8", "too_short: 1", "no_caption: 2", "unreadable: 1"):
        assert reason in problem
    for cure in ("bucket.num_frames", "buckets.upscale = true", "bucket.keep_prob"):
        assert cure in caught.value.remedy


def test_an_epoch_that_no_clip_is_drawn_for_is_told_of_that_epoch(folder: Path) -> None:
    made = files.recipe(folder, bucket=[{"resolution": "48px", "num_frames": 9, "keep_prob": 0.6}])
    data = RecipeData.open(made)
    spec = data.plan_spec(1, 1)
    planned = [data.plan(spec, epoch).planned for epoch in range(20)]
    assert planned[0] > 0, "or the test could not tell the epochs apart"
    empty = planned.index(0)
    with refused("empty-epoch", "bucket", says="not_drawn: 2"):
        position.begin_epoch(data, spec, epoch=empty)


def test_an_epoch_without_captions_says_where_they_belong(tmp_path: Path) -> None:
    for i in range(3):
        files.picture(tmp_path / "data" / f"{i}.png", grey=i, caption=None if i else "a cat", size=(8, 8))
    data = files.opened(files.recipe(tmp_path))
    with refused("empty-epoch", "dataset.path", says="2 of 3 clips have no caption") as caught:
        position.begin_epoch(data, data.plan_spec(1, 1), epoch=0)
    assert caught.value.field == "dataset.path"
    assert "cat.txt" in caught.value.remedy


def test_without_a_catalog_there_is_an_error(tmp_path: Path) -> None:
    with refused("no-catalog", "catalog"):
        RecipeData.open(files.recipe(tmp_path))
