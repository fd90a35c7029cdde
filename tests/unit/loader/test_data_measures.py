"""Shares of buckets and datasets, the order of steps and other worlds, each held against plans, place by place."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import prepare_files as files
import pytest
import wasted_time

from reelworks.core import results
from reelworks.data.schedule.plan import EpochPlan, PlanSpec
from reelworks.training.plan import epoch_stats, plan_forecast
from reelworks.training.recipe import dataset
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.recipe.recipe import Recipe

SIZES = [(96, 96), (128, 72), (72, 128), (96, 128), (128, 96)]
RATIOS = ["1:1", "16:9", "9:16", "4:3", "3:4"]
EPOCHS, WORLD = 2, 9


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of five aspect ratios in two datasets, and in a third one that no bucket takes."""
    root = tmp_path_factory.mktemp("measures")
    for name, count in (("many", 17), ("few", 5)):
        for i in range(count):
            files.picture(root / name / f"{i:02d}.png", SIZES[i % 5], grey=i)
    files.picture(root / "none" / "tiny.png", (16, 16))
    dataset.scan_recipe(recipe(root))
    return root


def recipe(folder: Path, entries: int = 2, **changes: Any) -> Recipe:
    sizes = [("80px", 3, 0.5), ("48px", 4, 1.0)][-entries:]
    values = {
        "dataset": [
            {"path": str(folder / "many")},
            {"path": str(folder / "few"), "repeats": 3},
            {"path": str(folder / "none")},
        ],
        "bucket": [
            {"resolution": name, "num_frames": 1, "batch_size": size, "keep_prob": keep} for name, size, keep in sizes
        ],
        "buckets": {"aspect_ratios": RATIOS, "max_crop": 0.6, "incomplete_batch": "pad"},
    }
    return files.recipe(folder, **(values | changes))


def opened(made: Recipe) -> tuple[RecipeData, PlanSpec, list[EpochPlan]]:
    data = RecipeData.open(made)
    spec = data.plan_spec(WORLD, WORLD)
    return data, spec, [data.plan(spec, epoch) for epoch in range(EPOCHS)]


def test_time_is_that_of_all_places_and_waste_that_of_places_without_a_clip(folder: Path) -> None:
    told = results.as_json(plan_forecast.forecast(recipe(folder), WORLD, EPOCHS))
    data, spec, plans = opened(recipe(folder))
    time: Counter[str] = Counter()
    for plan in plans:
        for bucket in plan.bucket.tolist():
            time[data.table.buckets[bucket].name] += spec.costs_us[bucket]
    assert not any(plan.real.all() for plan in plans)
    for one in told["shares"]:
        assert one["share_of_time"] == pytest.approx(time[one["name"]] / time.total())
    for measure in epoch_stats.MEASURES:
        assert sum(one[f"share_of_{measure}"] for one in told["shares"]) == pytest.approx(1)
    for plan, one in zip(plans, told["epochs"], strict=True):
        clips = np.add.reduceat(plan.real.astype(np.int64), plan.offsets[:-1])
        costs = np.array(spec.costs_us)[plan.bucket[plan.offsets[:-1]]]
        measured = wasted_time.measure(plan.steps, clips, np.diff(plan.offsets), costs, WORLD)
        assert one["waste"] == pytest.approx(measured.in_all)
        assert one["waste"] > one["imbalance"]


def test_datasets_have_what_their_places_have(folder: Path) -> None:
    told = {
        one["name"]: one for one in results.as_json(plan_forecast.forecast(recipe(folder), WORLD, EPOCHS))["datasets"]
    }
    data, spec, plans = opened(recipe(folder))
    sums: dict[str, Counter[str]] = defaultdict(Counter)
    for plan in plans:
        for uid, bucket, real in zip(plan.uid, plan.bucket.tolist(), plan.real.tolist(), strict=True):
            name = data.rows.dataset[int(data.rows.find(np.array([uid]))[0])].as_py()
            sums[name]["clips"] += real
            sums[name]["tokens"] += real * data.table.buckets[bucket].tokens
            sums[name]["time"] += spec.costs_us[bucket]
    whole = sum(sums.values(), Counter())
    assert list(told) == ["many", "few", "none"]
    for name, one in told.items():
        for measure in ("clips", "tokens", "time"):
            assert one[f"share_of_{measure}"] == pytest.approx(sums[name][measure] / whole[measure])
        assert one["clips"] == sums[name]["clips"]
    assert [one["showings_per_clip"] for one in told.values()] == [EPOCHS, 3 * EPOCHS, 0]
    assert [one["trainable_clips"] for one in told.values()] == [17, 5, 0]


def test_showings_are_of_clips_that_can_be_drawn_and_not_only_of_those_that_are(folder: Path) -> None:
    rare = {"resolution": "48px", "num_frames": 1, "batch_size": 4, "keep_prob": 0.4}
    many, few, none = results.as_json(plan_forecast.forecast(recipe(folder, bucket=[rare]), WORLD, EPOCHS))["datasets"]
    assert [one["trainable_clips"] for one in (many, few, none)] == [17, 5, 0]
    assert 0 < many["showings_per_clip"] < EPOCHS
    assert few["showings_per_clip"] == few["clips"] / 5


@pytest.mark.parametrize("entries", [1, 2])
def test_the_course_counts_every_micro_batch_where_its_step_lies(folder: Path, entries: int) -> None:
    """Buckets stand for themselves where eight colours suffice, and else their entries do."""
    made = recipe(folder, entries)
    told = results.as_json(plan_forecast.forecast(made, WORLD))
    data, _, (plan, _) = opened(made)
    groups = {one["name"]: one["group"] for one in told["shares"]}
    assert len(set(groups.values())) == (len(groups) if entries == 1 else 2)
    naive: dict[str, list[int]] = defaultdict(lambda: [0] * plan.num_steps)
    for step in range(plan.num_steps):
        for micro_batch in plan.micro_batches(step):
            bucket = int(plan.bucket[plan.places(int(micro_batch)).start])
            naive[groups[data.table.buckets[bucket].name]][step] += 1
    assert told["course"]["steps"] == plan.num_steps > 1
    assert {one["group"]: one["micro_batches"] for one in told["course"]["groups"]} == naive


def test_a_long_course_is_told_in_few_stretches(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, _, (plan, _) = opened(recipe(folder))
    names = [bucket.name for bucket in data.table.buckets]
    whole = epoch_stats.course(plan, names).groups
    monkeypatch.setattr(epoch_stats, "BINS", plan.num_steps - 1)
    for one, former in zip(epoch_stats.course(plan, names).groups, whole, strict=True):
        assert len(one.micro_batches) == plan.num_steps - 1
        assert sum(one.micro_batches) == sum(former.micro_batches)


def test_groups_beyond_the_colours_are_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The group that takes most time keeps its name, and others come last."""
    monkeypatch.setattr(epoch_stats, "NAMED", 1)
    told = results.as_json(plan_forecast.forecast(recipe(folder), WORLD))
    time: Counter[str] = Counter()
    for one in told["shares"]:
        time[one["group"]] += one["share_of_time"]
    assert [name for name, _ in time.most_common()][1:] == [epoch_stats.OTHERS]
    assert [one["group"] for one in told["course"]["groups"]][1:] == [epoch_stats.OTHERS]


def test_smaller_worlds_are_forecasts_of_their_own(folder: Path) -> None:
    (told,) = results.as_json(plan_forecast.forecast(recipe(folder), WORLD))["smaller_worlds"]
    (alone,) = results.as_json(plan_forecast.forecast(recipe(folder), 8))["epochs"]
    assert told | {"epoch": 0} == alone | {"world": 8}
    wide = recipe(folder, train={"max_epochs": 1, "same_bucket_run": 3})
    assert results.as_json(plan_forecast.forecast(wide, WORLD))["smaller_worlds"] == []
