"""Stages of a recipe: what each has, that they are read again as they were written, and mistakes with their cures."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import tiny_recipe
import tomli_w
from hypothesis import given
from hypothesis import strategies as st
from refused import refused

from reelworks.core.errors import UserError
from reelworks.data.schedule.cursor import StageStart
from reelworks.training.recipe import recipe_file, stages
from reelworks.training.recipe.recipe import Recipe

ENTRY = {"resolution": "64x64", "num_frames": 1, "batch_size": 4}


def values(*stages: dict[str, Any], **changes: Any) -> dict[str, Any]:
    footage, train = [{"path": "footage"}], {"learning_rate": 1e-4, "warmup_steps": 3}
    return tiny_recipe.least(dataset=footage, bucket=[ENTRY], train=train, stage=list(stages)) | changes


LOW: dict[str, Any] = {"name": "low", "steps": 10}
HIGH: dict[str, Any] = {
    "name": "high",
    "epochs": 2,
    "bucket": [{**ENTRY, "resolution": "96x96"}],
    "data": {"fps": 8.0},
    "train": {"learning_rate": 1e-5},
}


def written(recipe: Recipe) -> Recipe:
    return recipe_file.parse(tomllib.loads(recipe_file.dump(recipe)))


def test_a_stage_has_the_recipes_keys_but_for_its_own() -> None:
    recipe = recipe_file.parse(values(LOW, HIGH))
    low, high = recipe_file.each_stage(recipe)
    assert (low.train.learning_rate, high.train.learning_rate) == (1e-4, 1e-5)
    assert (low.train.warmup_steps, high.train.warmup_steps) == (3, 3)
    assert (low.bucket[0].resolution, high.bucket[0].resolution) == ("64x64", "96x96")
    assert (low.data.fps, high.data.fps) == (None, 8.0)
    assert (low.train.max_steps, low.train.max_epochs) == (10, None)
    assert (high.train.max_steps, high.train.max_epochs) == (None, 2)
    later = recipe_file.of_stage(recipe, 1, StageStart("high", step=10, epoch=3, clips=40))
    assert (later.train.max_steps, later.train.max_epochs, later.train.max_clips) == (None, 5, None)
    assert not high.stage


def test_an_override_of_one_entry_in_a_stage_leaves_the_recipes_entries(tmp_path: Path) -> None:
    """A stage that lists none has those of the recipe until then; other keys of a table stay the recipe's."""
    stages = ({"name": name, "steps": 10} for name in ("low", "mid", "high"))
    (file := tmp_path / "recipe.toml").write_text(tomli_w.dumps(values(*stages)), encoding="utf-8")
    recipe = recipe_file.load(file, ["stage.mid.bucket.0.batch_size=2", "stage.mid.train.warmup_steps=7"])
    found = recipe_file.each_stage(recipe)
    assert [[(one.resolution, one.batch_size) for one in stage.bucket] for stage in found] == [
        [("64x64", size)] for size in (4, 2, 4)
    ]
    assert [(stage.train.warmup_steps, stage.train.learning_rate) for stage in found] == [(n, 1e-4) for n in (3, 7, 3)]


def test_a_stage_is_validated_at_timesteps_that_it_trains() -> None:
    """Also as the run folder has it; named timesteps are those of all stages."""
    noisy = {"name": "noisy", "steps": 10, "objective": {"timestep_range": [800.0, 1000.0]}}
    recipe = recipe_file.parse(values(LOW, noisy))
    for read in (recipe, written(recipe)):
        times = [stage.validation_timesteps for stage in recipe_file.each_stage(read)]
        assert times == [[100.0, 300.0, 500.0, 700.0, 900.0], [820.0, 860.0, 900.0, 940.0, 980.0]]
    named = recipe_file.parse(values(LOW, noisy, validation={"timesteps": [300.0, 900.0]}))
    assert [stage.validation_timesteps for stage in recipe_file.each_stage(named)] == [[300.0, 900.0]] * 2
    with refused("validation-timesteps-invalid", "validation.timesteps", says="0, 1000"):
        recipe_file.parse(values(LOW, noisy, validation={"timesteps": [0.0, 900.0]}))


def test_entries_of_a_stage_take_the_place_of_an_open_sora_table_of_the_recipe() -> None:
    """Other stages keep the table, and other keys of `[buckets]` hold for all."""
    table = {"opensora": {"48px": {"1": [1.0, 8]}}, "probability": "opensora-1.2", "incomplete_batch": "pad"}
    base = values(LOW, HIGH, buckets=table)
    del base["bucket"]
    low, high = recipe_file.each_stage(recipe_file.parse(base))
    assert low.buckets.opensora is not None
    assert (high.buckets.opensora, [entry.resolution for entry in high.bucket]) == (None, ["96x96"])
    assert low.buckets.incomplete_batch == high.buckets.incomplete_batch == "pad"


def test_steps_of_the_whole_run_limit_every_stage_and_end_the_last() -> None:
    recipe = recipe_file.parse(values(LOW, {"name": "rest"}, train={"max_steps": 50}))
    assert [s.train.max_steps for s in recipe_file.each_stage(recipe)] == [10, 50]
    assert recipe_file.of_stage(recipe, 1, StageStart("rest", step=10)).train.max_steps == 50
    short = recipe_file.parse(values(LOW, HIGH, train={"max_steps": 5}))
    assert recipe_file.of_stage(short, 0, StageStart("low")).train.max_steps == 5


@pytest.mark.parametrize(
    ("ends", "text"),
    [
        ({"steps": 5}, "5 steps"),
        ({"steps": 1, "clips": 20}, "1 step or 20 clips"),
        ({}, "train.max_steps of the run"),
    ],
)
def test_a_stage_says_for_how_long_it_is(ends: dict[str, int], text: str) -> None:
    assert stages.StageConfig(name="low", **ends).end_text == text


TABLES = st.fixed_dictionaries(
    {},
    optional={
        "train": st.fixed_dictionaries({}, optional={
            "learning_rate": st.sampled_from([1e-4, 2e-4]),
            "max_grad_norm": st.sampled_from(["none", 0.9]),
            "compile": st.booleans(),
        }),
        "data": st.fixed_dictionaries({}, optional={"fps": st.sampled_from(["none", 8.0, 16.0])}),
        "buckets": st.fixed_dictionaries({}, optional={"upscale": st.booleans()}),
        "bucket": st.lists(st.sampled_from([ENTRY, {**ENTRY, "resolution": "96x96"}]), min_size=1, max_size=2,
                           unique_by=lambda entry: entry["resolution"]),
        "dataset": st.just([{"path": "other", "repeats": 2}]),
        "ema": st.sampled_from(["keep", "reset"]),
    },
)  # fmt: skip


@given(st.lists(TABLES, min_size=1, max_size=3), TABLES)
@pytest.mark.slow
def test_stages_are_read_again_as_they_were_written(tables: list[dict[str, Any]], base: dict[str, Any]) -> None:
    """What a stage resolves to depends on no other stage, wherever it is written."""
    for table in (base, tables[0]):
        table.pop("ema", None)
    alone = [{"name": f"s{i}", "steps": 5, **table} for i, table in enumerate(tables)]
    recipe = recipe_file.parse(values(*alone, **base))
    again = written(recipe)
    assert again == recipe
    assert recipe_file.each_stage(again) == recipe_file.each_stage(recipe)
    for index, stage in enumerate(alone):
        only = recipe_file.parse(values({**stage, "ema": "keep"}, **base))
        assert recipe_file.of_stage(recipe, index) == recipe_file.of_stage(only, 0)


def load(tmp_path: Path, *overrides: str) -> Recipe:
    path = tmp_path / "staged.toml"
    path.write_text(recipe_file.dump(recipe_file.parse(values(LOW, HIGH))), encoding="utf-8")
    return recipe_file.load(path, overrides)


def test_a_stage_is_chosen_by_its_name_whatever_else_is_set(tmp_path: Path) -> None:
    high = load(tmp_path, "stage=high", "stage.1.train.learning_rate=3e-5")
    assert (high.train.learning_rate, high.bucket[0].resolution, high.stage) == (3e-5, "96x96", [])
    assert load(tmp_path, 'stage="high"', "stage.1.train.learning_rate=3e-5") == high, "as TOML writes a text"
    assert load(tmp_path, "stage=low", "stage=high", "stage.1.train.learning_rate=3e-5") == high, "the last one counts"
    with refused("stage-unknown", "stage", says='did you mean "high"'):
        load(tmp_path, "stage=hihg")


@pytest.mark.parametrize("name", ["low", "high"])
@pytest.mark.parametrize("key", ["bucket.0.batch_size", "train.skip_steps", "buckets.incomplete_batch"])
def test_what_is_set_for_a_stage_holds_in_it_alone_whatever_it_has_itself(tmp_path: Path, name: str, key: str) -> None:
    file, other = tmp_path / "stages.toml", {"low": "high", "high": "low"}[name]
    file.write_text(tomli_w.dumps(values(LOW, HIGH)), encoding="utf-8")
    value, table = {"bucket": 7, "train": [[2, 2]], "buckets": "merge"}[key.split(".")[0]], key.split(".")[0]
    hint = f"{stages.of_stage(key, name)}={value}"

    def found(stage: str, *overrides: str) -> Any:
        made = getattr(recipe_file.load(file, (*overrides, f"stage={stage}")), table)
        return getattr(made[0] if table == "bucket" else made, key.split(".")[-1])

    assert found(name, hint) == value
    assert found(other, hint) == found(other) != value


def test_what_is_set_for_all_but_a_stage_has_itself_is_told_with_what_would_change_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "stages.toml"
    file.write_text(tomli_w.dumps(values(LOW, HIGH)), encoding="utf-8")
    reached = ["train.warmup_steps=1", "stage.high.train.learning_rate=1", "stage.1.bucket.0.batch_size=2", "seed=3"]
    recipe_file.load(file, reached)
    recipe_file.load(file, ["train.learning_rate=1", "stage=low"])
    recipe_file.load(file, ["train.learning_rate=1", "stage.high.train.learning_rate=1"])
    recipe_file.load(file, ["train.learning_rate=1", "stage.1.train.learning_rate=1"])
    assert not caplog.records
    recipe_file.load(file, ["train.learning_rate=1", "bucket[0].batch_size=2"])
    told = [record.message for record in caplog.records]
    for text, words in zip(("train.learning_rate=1", "bucket[0].batch_size=2"), told, strict=True):
        assert f"--set {text} does not reach stage high" in words
        assert f"--set stage.high.{text} does" in words


def test_other_footage_is_that_of_all_stages() -> None:
    staged = recipe_file.parse(values(LOW, {**HIGH, "dataset": [{"path": "elsewhere"}]}))
    stages = recipe_file.each_stage(recipe_file.on_footage(staged, Path("mine")))
    assert [stage.dataset[0].path for stage in stages] == ["mine", "mine"]


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"stage": [{"name": "low"}, HIGH]}, "stage-end-missing", "stage.steps"),
        ({"stage": [LOW, {"name": "high"}]}, "stage-end-missing", "stage.steps"),
        ({"stage": [LOW, {**HIGH, "name": "low"}]}, "stage-name-taken", "stage.name"),
        ({"stage": [{**LOW, "ema": "reset"}, HIGH]}, "stage-reset-invalid", "stage.ema"),
        ({"stage": [{**LOW, "optimizer": "reset"}, HIGH]}, "stage-reset-invalid", "stage.optimizer"),
        ({"stage": [LOW, {**HIGH, "name": "a b"}]}, "stage-name-invalid", "stage.name"),
        ({"stage": [LOW, {**HIGH, "model": {"name": "wan"}}]}, "not-of-a-stage", "stage.1.model"),
        ({"stage": [LOW, {**HIGH, "lora": {}}]}, "not-of-a-stage", "stage.1.lora"),
        ({"stage": [LOW, {**HIGH, "buckit": []}]}, "unknown-key", "stage.1.buckit"),
        ({"stage": [LOW, {**HIGH, "train": {"max_steps": 9}}]}, "stage-end-invalid", "stage.train.max_steps"),
        ({"stage": [LOW, {**HIGH, "train": {"learning_rat": 9}}]}, "unknown-key", "stage.train.learning_rat"),
        ({"stage": [LOW, {**HIGH, "train": {"optimizer": "muon"}}]}, "optimizer-state-differs", "stage.train.optimizer"),
        ({"train": {"optimizer": "schedulefree"}, "stage": [LOW, {**HIGH, "ema": "reset"}]}, "stage-reset-invalid", "stage.ema"),
        ({"stage": [LOW, {**HIGH, "bucket": [], "buckets": {"entries": "auto"}}]}, "stages-with-proposed-entries", "buckets.entries"),
        ({"stage": [LOW, {"name": "high", "clips": 9, "train": {"learning_rate_schedule": "cosine"}}]}, "schedule-without-end", "stage.train.learning_rate_schedule"),
        ({"stage": [LOW, {**HIGH, "objective": {"name": "iddpm"}}]}, "other-objective", "stage.objective.name"),
        ({"stage": [LOW, {**HIGH, "objective": {"prediction": "sample"}}]}, "other-objective", "stage.objective.prediction"),
        ({"stage": [LOW, {**HIGH, "dataset": [{"path": "new/footage"}]}]}, "duplicate-dataset-name", "stage.dataset.name"),
        ({"stage": [LOW, {**HIGH, "dataset": [{"path": "footage", "scene_cuts": True}]}]}, "duplicate-dataset-name", "stage.dataset.name"),
        ({"stage": [LOW, {**HIGH, "train": {"threads": 2}}]}, "not-of-a-stage", "stage.train.threads"),
        ({"stage": [LOW, {**HIGH, "steps": 0}]}, None, "stage.1.steps"),
        ({"train": {"max_epochs": 3}}, "stage-end-invalid", "train.max_epochs"),
        ({"train": {"max_steps": "none"}, "stage": [LOW, {"name": "high"}]}, "stage-end-missing", "stage.steps"),
        ({"train": {"ema_decay": 0.9}, "stage": [LOW, {**HIGH, "optimizer": "reset", "train": {"optimizer": "schedulefree"}}]}, "unknown-optimizer-setting", "train.ema_decay"),
        ({"stage": [LOW, {**HIGH, "objective": {"target_guidance_scale": 2.0}}], "model": {"name": "ltx-2-sound-tiny"}, "sound": {"name": "pcm"}, "lora": {}, "data": {"fps": 8.0}}, "sound-objective", "stage.objective"),
        ({"model": {"name": "nothing"}}, None, "model.name"),
    ],
)  # fmt: skip
def test_mistakes_are_told_with_their_place(change: dict[str, Any], code: str | None, field: str) -> None:
    with pytest.raises(UserError) as caught:
        recipe_file.parse(values(LOW, HIGH) | change)
    assert caught.value.field == field
    assert code in (None, caught.value.code)


def test_ends_of_the_run_that_are_none_are_none() -> None:
    ends = {"max_epochs": "none", "max_clips": "none", "max_steps": "none"}
    plain, made = (recipe_file.parse(values(LOW, HIGH, train=train)) for train in ({}, ends))
    assert [one.train for one in recipe_file.each_stage(made)] == [one.train for one in recipe_file.each_stage(plain)]


def test_a_rate_that_falls_needs_steps_or_epochs_whatever_else_ends_it() -> None:
    falls = {"learning_rate_schedule": "cosine"}
    with refused(
        "schedule-without-end",
        "stage.train.learning_rate_schedule",
        says=r"write steps or epochs in \[\[stage\]\] high",
    ):
        recipe_file.parse(values(LOW, {"name": "high", "clips": 9, "train": falls}))
    recipe_file.parse(values(LOW, {**HIGH, "train": falls}))
    recipe_file.parse(values(LOW, {**HIGH, "steps": 30, "train": falls}))
    recipe_file.parse(values(LOW, {"name": "rest", "train": falls}, train={"max_steps": 50}))
    whole = recipe_file.parse(values({"name": "first", "clips": 9}, LOW, train={**falls, "max_steps": 50}))
    assert [stage.train.max_steps for stage in recipe_file.each_stage(whole)] == [50, 10]
    with refused(
        "schedule-without-end", "train.learning_rate_schedule", says="set train.max_steps or train.max_epochs"
    ):
        recipe_file.parse(values(train={**falls, "max_clips": 30}))


def test_stages_may_name_other_folders_that_have_other_names() -> None:
    others = [{"path": "footage", "repeats": 3}, {"path": "new/footage", "name": "new"}]
    staged = recipe_file.each_stage(recipe_file.parse(values(LOW, {**HIGH, "dataset": others})))
    assert [[dataset.dataset_name for dataset in stage.dataset] for stage in staged] == [
        ["footage"],
        ["footage", "new"],
    ]
    masked = [{**LOW, "dataset": [{"path": "footage", "loss_mask": folder}]} for folder in ("masks", "other")]
    with refused("duplicate-dataset-name", says="in stage high: .*masks, other"):
        recipe_file.parse(values(masked[0], {**masked[1], "name": "high"}))
