"""Stages: one run whose parts differ, and that a kill at any place leaves as it would have been."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import children
import faults
import killing
import pytest
import tomli_w
import torch
from refused import refused
from safetensors.torch import load_file
from typer.testing import CliRunner

import reelworks as rw
from reelworks.commands import show_plan
from reelworks.commands.main import app
from reelworks.core import trust
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.run import events, history
from reelworks.data.run.folder import RunFolder
from reelworks.models import factory
from reelworks.training.preflight import check, stage_data, stage_forecast
from reelworks.training.recipe import dataset, recipe_file

BARE = {"buckets": {"aspect_ratios": ["1:1"], "upscale": True, "max_crop": 0.7}}
FIRST = {"name": "first", "steps": 3}
SECOND = {
    "name": "second",
    "epochs": 1,
    "ema": "reset",
    "bucket": [{"resolution": "48px", "num_frames": [1, 5], "batch_size": [4, 3]}],
    "train": {"learning_rate": 5e-4, "learning_rate_schedule": "cosine"},
}
THIRD = {
    "name": "third",
    "clips": 7,
    "optimizer": "reset",
    "bucket": [{"resolution": "64px", "num_frames": 1, "batch_size": 2}],
    "train": {"optimizer": "muon", "learning_rate": 1e-4, "warmup_steps": 0},
}


@pytest.fixture
def staged(tiny: Any) -> Any:
    def make(output: str = "run", *stages: dict[str, Any], **changes: Any) -> dict[str, Any]:
        recipe = tiny(output, **{"train": {"warmup_steps": 2}, "validation": {"every_steps": 3}, **BARE, **changes})
        del recipe["train"]["max_steps"]
        return recipe | {"stage": list(stages or (FIRST, SECOND, THIRD))}

    return make


def saved(run: Path) -> tuple[int, dict[str, str]]:
    """The last checkpoint's step, and the digests of its files: weights, average, optimizer, position in the data."""
    info = CheckpointFolder(run / "checkpoints").list()[-1]
    return info.step, {file.path: file.digest for file in info.manifest.files}


def steps(run: Path) -> list[dict[str, Any]]:
    return events.timeline(RunFolder(run).events_file, "step")


def ends(run: Path, stage: int) -> list[dict[str, Any]]:
    """The accounts of the epochs of a stage, by its index."""
    return [e.ended for e in history.epochs(RunFolder(run)) if e.data_restarts == stage and e.ended is not None]


def starts(run: Path) -> list[tuple[str, int]]:
    return [(e["stage"]["name"], e["stage"]["step"]) for e in events.read(RunFolder(run).events_file, "start")]


@pytest.mark.slow
def test_stages_follow_each_other_and_a_kill_changes_nothing(staged: Any, tmp_path: Path) -> None:
    calm = staged("calm")
    assert children.train(calm) == [0]
    run = tmp_path / "calm"
    (first, second, third), done = starts(run), steps(run)
    assert (first, second) == (("first", 0), ("second", 3))
    rates = {step["step"]: step["learning_rate"] for step in done}
    assert [rates[1], rates[2], rates[3]] == pytest.approx([5e-4, 1e-3, 1e-3])
    assert [rates[4], rates[5]] == pytest.approx([2.5e-4, 5e-4]), "the warm-up begins anew"
    falling = [rates[step] for step in range(6, third[1] + 1)]
    assert falling == sorted(falling, reverse=True), "over the stage's own epoch"
    assert falling[-1] < 5e-4 / 2
    assert rates[third[1] + 1] == pytest.approx(1e-4)
    assert 7 <= sum(step["clips"] for step in done if step["step"] > third[1]) < 9

    # The epoch of the second stage trains each of its clips once.
    (epoch,) = ends(run, 1)
    assert epoch["trained"] == epoch["planned"] == sum(s["clips"] for s in done if 3 < s["step"] <= third[1])
    assert {info.stage for info in CheckpointFolder(run / "checkpoints").list()} == {"first", "second", "third"}

    hurt = staged("hurt")
    for place, count in (
        ("after the optimizer stepped", 2),
        ("before the commit's rename", 2),
        ("after the commit's rename", 2),
        ("after the optimizer stepped", 3),
    ):
        assert children.train(hurt, fault=(place, count)) != [0]
    assert children.train(hurt) == [0]
    assert saved(tmp_path / "hurt") == saved(run)
    assert len(starts(tmp_path / "hurt")) > 3


def _dies_in_its_previews(recipe: dict[str, Any]) -> None:
    """Be killed before the second preview is written, which is of the first stage's end."""
    from reelworks.inference.generate import writers

    faults.at_call(writers, "write", 2, killing.kill_self)
    children.train_here(recipe)


@pytest.mark.slow
def test_what_a_kill_at_the_end_of_a_stage_left_no_time_for_is_made_up_with_its_settings(
    staged: Any, tmp_path: Path
) -> None:
    """The average of the stage before begins anew in the next one, so that only that stage itself can show it."""
    few = {"num_frames": 1, "num_inference_steps": 1}
    first = {**FIRST, "samples": {"prompts": ["a", "b"], **few}}
    second = {"name": "second", "steps": 1, "ema": "reset", "samples": {"prompts": ["c"], **few}}
    calm, hurt = (staged(name, first, second, exports={"weights": "ema"}) for name in ("calm", "hurt"))
    assert children.train(calm) == [0]
    assert children.in_child(_dies_in_its_previews, hurt) == killing.SELF_KILLED
    assert children.train(hurt) == [0]

    def left(name: str) -> tuple[Any, ...]:
        run = RunFolder(tmp_path / name)
        told = events.timeline(run.events_file, "samples", "export", "checkpoint", "validation", "stop")
        files = {p.relative_to(run.path).as_posix(): p.read_bytes() for p in run.samples_folder.glob("*/*")}
        return files, [(e["kind"], e["step"], e.get("prompts"), e.get("reason")) for e in told]

    assert left("hurt") == left("calm")
    assert len(left("calm")[0]) == 3


def test_an_average_that_begins_anew_has_the_age_of_its_stage(staged: Any, tmp_path: Path) -> None:
    """So that its first steps weigh as those of a new run; one that is kept has the age of the stage before."""
    kept = {**SECOND, "name": "third", "ema": "keep"}
    recipe = staged("aged", FIRST, SECOND, kept, checkpoints={"every_steps": 1, "keep_last": 20})
    assert children.train(recipe) == [0]
    run = tmp_path / "aged"
    began = [e["stage"] for e in events.read(RunFolder(run).events_file, "start")]
    assert [stage["average_step"] for stage in began] == [0, 3, 3]
    weights, before, after = (
        load_file(
            rw.export(run / "checkpoints" / f"step-{step:09d}", tmp_path / name, ema=ema, dtype="float32").files[0]
        )
        for step, name, ema in ((4, "w.safetensors", False), (3, "b.safetensors", False), (4, "a.safetensors", True))
    )
    name = max(weights, key=lambda key: float((weights[key] - before[key]).norm()))
    share = (after[name] - before[name]).norm() / (weights[name] - before[name]).norm()
    assert float(share) == pytest.approx(0.9, abs=1e-3), "1 - 1/10, as in the first step of a run"


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["schedulefree", "adamw"])
def test_a_stage_behind_schedule_free_adamw_begins_from_its_average(
    staged: Any, tmp_path: Path, optimizer: str
) -> None:
    """With an optimizer that begins anew, whose first step is too small to be seen; the average goes on from there."""
    free = {"optimizer": "schedulefree", "learning_rate": 0.05, "warmup_steps": 0}
    second = {"name": "second", "steps": 1, "optimizer": "reset"}
    second["train"] = {"optimizer": optimizer, "learning_rate": 1e-30, "warmup_steps": 0}
    recipe = staged("run", {**FIRST, "train": free}, second, checkpoints={"every_steps": 1, "keep_last": 9})
    assert children.train(recipe) == [0]

    def weights(step: int, ema: bool) -> dict[str, Any]:
        checkpoint = tmp_path / "run" / "checkpoints" / f"step-{step:09d}"
        return load_file(
            rw.export(checkpoint, tmp_path / f"{step}-{ema}.safetensors", ema=ema, dtype="float32").files[0]
        )

    points, average = weights(3, False), weights(3, True)
    assert max(float((points[name] - average[name]).abs().max()) for name in average) > 1e-3
    for after in (weights(4, False), weights(4, True)):
        for name, value in average.items():
            assert torch.allclose(after[name], value, rtol=1e-5, atol=1e-7), name


def _tells_its_exports(recipe: dict[str, Any]) -> None:
    """Get a signal in the first step of the second stage, and print the files of weights that the result names."""
    from reelworks.training.loop.request import TrainRequest
    from reelworks.training.loop.trainer import TrainResult, run
    from reelworks.training.step.state import TrainState

    def told(result: TrainResult) -> None:
        print("result:", result.step, [file.name for file in result.exports], flush=True)

    faults.at_call(TrainState, "update_ema", 2, faults.ask_to_leave)
    os._exit(run(recipe_file.parse(recipe), TrainRequest(), on_end=told))


def test_the_result_names_the_exports_of_an_earlier_stage_where_the_last_wrote_none(staged: Any) -> None:
    exports = {"weights": "ema", "every_n_saves": 9}
    recipe = staged("run", {"name": "first", "steps": 1}, {"name": "second", "steps": 9}, exports=exports)
    assert children.in_child(_tells_its_exports, recipe) == 75
    output = children.output(recipe)
    assert "result: 3 ['step-000000001-ema.safetensors']" in output
    assert "stage second begins after step 1, for 9 steps" in output
    assert "train.max_steps" not in output, "a sum of ends, which is no key that somebody wrote"


def _asked_to_leave(recipe: dict[str, Any], place: str) -> None:
    """Get a signal on the last rank: before the first stage, in its last step, in the validation behind it, or before the next."""
    from reelworks.training.loop import start
    from reelworks.training.observers.validation import Validator
    from reelworks.training.step.state import TrainState

    places = {"first scan": (start, "scan", 1), "scan": (start, "scan", 2)}
    places |= {"step": (TrainState, "update_ema", 3), "validation": (Validator, "run", 2)}
    if int(os.environ.get("RANK", 0)) + 1 == int(os.environ.get("WORLD_SIZE", 1)):
        faults.at_call(*places[place], faults.ask_to_leave)
    children.train_here(recipe)


@pytest.mark.parametrize(
    ("place", "world"),
    [
        ("step", 1),
        ("scan", 1),
        pytest.param("scan", 2, marks=pytest.mark.slow(reason="two ranks")),
        *(pytest.param("validation", n, marks=pytest.mark.slow(reason="a signal of another moment")) for n in (1, 2)),
    ],
)
@pytest.mark.slow
def test_a_signal_where_a_stage_ends_stops_before_the_next(staged: Any, tmp_path: Path, place: str, world: int) -> None:
    recipe = staged("run", FIRST, {"name": "second", "steps": 1}, train={"micro_batches_per_step": 2})
    assert children.on_ranks(_asked_to_leave, recipe, place, world=world) == [75] * world
    assert "stopped after step 3; the same command goes on" in children.output(recipe)
    assert starts(tmp_path / "run") == [("first", 0)]
    assert children.train(recipe, world=world) == [0] * world
    # In the stage, the signal may have cut short what comes after its last save.
    again = [] if place == "scan" else [("first", 0)]
    assert starts(tmp_path / "run") == [("first", 0), *again, ("second", 3)]


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.slow
def test_a_signal_before_the_first_step_leaves_with_the_requeue_code(staged: Any, tmp_path: Path, world: int) -> None:
    recipe = staged("run", FIRST, train={"micro_batches_per_step": 2})
    assert children.on_ranks(_asked_to_leave, recipe, "first scan", world=world) == [75] * world
    assert "stopped before the first step of this start; the same command goes on" in children.output(recipe)
    assert children.train(recipe, world=world) == [0] * world
    assert starts(tmp_path / "run") == [("first", 0)]


@pytest.mark.slow
def test_later_stages_may_be_edited_and_finished_ones_stay_as_they_were(staged: Any, tmp_path: Path) -> None:
    assert children.train(staged("run", FIRST, SECOND), fault=("after the optimizer stepped", 5)) != [0]
    edited = {**FIRST, "train": {"weight_decay": 0.1}}, {**SECOND, "epochs": 2}, THIRD
    recipe = staged("run", *edited)
    assert children.train(recipe) == [0]
    told = children.output(recipe)
    assert "stage first is finished, and stays as it was: train.weight_decay: 0.0 then, 0.1 now" in told
    run = tmp_path / "run"
    assert [name for name, _ in starts(run)] == ["first", "second", "second", "third"]
    assert len(ends(run, 1)) == 2

    renamed = staged("run", *[{**stage, "name": stage["name"].upper()} for stage in edited])
    assert children.in_child(children.train_and_exit, renamed) == 2
    assert "is in stage third, which the recipe does not have" in children.output(renamed)


@pytest.mark.slow
def test_only_what_a_person_edited_is_told_of_a_finished_stage(staged: Any, tmp_path: Path) -> None:
    """Not what was measured or chosen by memory, nor the steps of the run, nor that another dataset has the same files."""
    tuned = tmp_path / "tuned.json"
    tuned.write_text(json.dumps({"batch_sizes": {"48px ×1": 4}}), encoding="utf-8")
    first = {
        **{"name": "first", "clips": 5, "buckets": {"tuned": str(tuned)}},
        "bucket": [{"resolution": "48px", "num_frames": 1, "batch_size": "auto"}],
    }
    whole = staged()["dataset"][0]["path"]
    shutil.copytree(whole, tmp_path / "all" / "part")
    second = {"name": "second", "dataset": [{"path": str(tmp_path / "all" / "part")}]}
    own = {"dataset": [{"path": str(tmp_path / "all")}], "model": {"gradient_checkpointing": "auto"}}
    for most in (5, 6):
        recipe = staged("run", first, second, **own)
        recipe["train"]["max_steps"] = most
        assert children.train(recipe) == [0]
        assert "stays as it was" not in children.output(recipe)
        assert "seems to be" not in children.output(recipe)
    edited = staged("run", {**first, "train": {"weight_decay": 0.1}}, second, **own)
    edited["train"]["max_steps"] = 6
    assert children.train(edited) == [0]
    assert children.output(edited).count("stays as it was") == 1


@pytest.mark.slow
def test_stages_keep_the_order_in_which_they_began(staged: Any, tmp_path: Path) -> None:
    second, third, new = ({"name": name, "steps": 1} for name in ("second", "third", "new"))
    assert children.train(staged("run", FIRST, second)) == [0]
    swapped = staged("run", second, FIRST)
    assert children.in_child(children.train_and_exit, swapped) == 2
    assert "stage.name = 'first': it comes behind second, but was trained before it" in children.output(swapped)

    inserted = staged("run", FIRST, new, second, third)
    assert children.train(inserted) == [0]
    assert "stage new comes before second, which has begun, and is not trained" in children.output(inserted)
    assert starts(tmp_path / "run") == [("first", 0), ("second", 3), ("third", 4)]

    # Back at the end of the first stage, the others have not begun.
    back = staged("run", FIRST, new, third, second)
    assert children.train(back, resume="3") == [0]
    assert starts(tmp_path / "run")[3:] == [("new", 3), ("third", 4), ("second", 5)]


@pytest.mark.slow
def test_a_later_stage_without_data_is_told_before_training(staged: Any, tmp_path: Path) -> None:
    footage = staged()["dataset"][0]
    for lacking, says in (
        ({"filter": "height > 5000"}, "stage.dataset.filter"),
        ({"path": str(tmp_path / "gone")}, "no such folder"),
    ):
        wrong = staged("run", FIRST, {**SECOND, "dataset": [{**footage, **lacking}]})
        assert children.in_child(children.train_and_exit, wrong) == 2
        assert "in stage second: " in children.output(wrong)
        assert says in children.output(wrong)
    assert not list((tmp_path / "run").glob("checkpoints/step-*"))
    (tmp_path / "wrong.toml").write_text(tomli_w.dumps(wrong), encoding="utf-8")
    assert "in stage second: " in str(CliRunner().invoke(app, ["check", str(tmp_path / "wrong.toml")]).exception)

    # Also where it is edited while the first stage is trained.
    assert children.train(staged("run", FIRST, SECOND), fault=("after the optimizer stepped", 3)) != [0]
    assert children.in_child(children.train_and_exit, wrong) == 2


def test_data_of_a_later_stage_alone_are_scanned_before_training(staged: Any, tmp_path: Path) -> None:
    footage = staged()["dataset"][0]
    own = {"path": str(tmp_path / "gone"), "name": "own"}
    recipe = recipe_file.parse(staged("run", FIRST, {**SECOND, "dataset": [footage, own]}))
    with refused("no-such-folder", says="in stage second: .*no such folder"):
        stage_data.require(recipe, range(2), dataset.scan_recipe, 1, 1)


@pytest.mark.parametrize("command", ["train", "check"])
@pytest.mark.quick_cases(1)
def test_code_that_a_later_stage_names_is_asked_about(staged: Any, tmp_path: Path, command: str) -> None:
    (tmp_path / "sharp.py").write_text(
        "from pathlib import Path\nPath(__file__).with_name('ran').touch()\n", encoding="utf-8"
    )
    file = tmp_path / "staged.toml"
    samples = {"prompts": ["a"], "metrics": [f"{tmp_path}/sharp.py:Sharp"]}
    file.write_text(tomli_w.dumps(staged("run", FIRST, {**SECOND, "samples": samples})), encoding="utf-8")
    trust.ask_with(lambda path: False)
    with refused("code-not-trusted"):
        CliRunner().invoke(app, [command, str(file)], catch_exceptions=False)
    assert not (tmp_path / "ran").exists()


def test_a_check_ends_in_1_for_a_violation_of_an_earlier_stage_alone(
    staged: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, build = check.check_recipe, factory.build_denoiser

    def planted(*arguments: Any, **options: Any) -> Any:
        denoiser = build(*arguments, **options)
        denoiser.module.spatial_blocks[0].mlp.fc2.half()
        return denoiser

    def wrong_in_the_first(recipe: Any, *arguments: Any, **options: Any) -> Any:
        with monkeypatch.context() as patch:
            if recipe.bucket[0].resolution != "48px":
                patch.setattr(factory, "build_denoiser", planted)
            return whole(recipe, *arguments, **options)

    monkeypatch.setattr(check, "check_recipe", wrong_in_the_first)
    file = tmp_path / "staged.toml"
    file.write_text(tomli_w.dumps(staged("run", FIRST, SECOND)), encoding="utf-8")
    done = CliRunner().invoke(app, ["check", str(file)])
    first, _, second = done.output.partition("stage second")
    assert ("2 violations" in first, "no violation" in second, done.exit_code) == (True, True, 1)


def test_training_is_of_all_stages(staged: Any, tmp_path: Path) -> None:
    file = tmp_path / "staged.toml"
    file.write_text(tomli_w.dumps(staged()), encoding="utf-8")
    with refused("stage-chosen-for-training", "--set"):
        rw.train(file, overrides=["stage=second"])
    assert "--set = 'stage=second'" in str(
        CliRunner().invoke(app, ["train", str(file), "--set", "stage=second"]).exception
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_steps_of_the_whole_run_end_it_in_any_stage(staged: Any, tmp_path: Path) -> None:
    for most in (3, 5, 5, 6):
        recipe = staged("run", FIRST, SECOND, {"name": "rest"})
        recipe["train"]["max_steps"] = most
        assert children.train(recipe) == [0]
        assert steps(tmp_path / "run")[-1]["step"] == most
    assert children.train(recipe) == [0]
    assert "nothing left to train at step 6; stage second is at its end" in children.output(recipe)
    assert {name for name, _ in starts(tmp_path / "run")} == {"first", "second"}
    *_, last = events.read(RunFolder(tmp_path / "run").events_file, "stop")
    assert last["reason"] == "finished"


@pytest.mark.slow
def test_times_of_a_plan_are_marked_where_they_were_not_measured(staged: Any, monkeypatch, capsys) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    recipe = recipe_file.parse(staged("run", FIRST, SECOND))
    found = stage_forecast.forecast(recipe, dataset.scan_recipe, world=1)
    assert [stage.is_measured for stage in found.stages] == [False, False]
    for marks, is_measured in ((2, False), (0, True)):
        show_plan.stages(replace(found, stages=[replace(one, is_measured=is_measured) for one in found.stages]))
        rows = [
            line
            for line in capsys.readouterr().out.splitlines()
            if "≈ " in line and line.startswith((" first", " second"))
        ]
        assert len(rows) == marks


def test_their_disk_has_a_checkpoint_of_each_stage_and_those_of_validations(staged: Any) -> None:
    recipe = staged("run", {"name": "first", "steps": 4}, {"name": "second", "steps": 8})
    recipe["bucket"] = [{"resolution": "32x32", "num_frames": 1, "batch_size": 2}]  # memory is estimated of each
    dataset.scan_recipe(recipe_file.parse(recipe))

    def peak(**checkpoints: Any) -> float:
        values = recipe | {"checkpoints": {"keep_last": 100, "every_steps": None, "keep_best": None, **checkpoints}}
        found = stage_forecast.forecast(recipe_file.parse(values), lambda one: None, world=1)
        return found.disk_bytes / found.checkpoint_bytes

    first, second = stage_forecast.forecast(recipe_file.parse(recipe), lambda one: None, world=1).stages
    assert 0 < first.clips <= second.clips < 3 * first.clips, "those of twice as many steps, without those before"
    assert peak() == len([4, 12]) + 1
    assert peak(every_steps=2) == len([2, 4, 6, 8, 10, 12]) + 1
    assert peak(every_steps=5, keep_last=1) == 2 + 1
    assert peak(at_best=True, keep_best={"metric": "loss"}) == len([3, 4, 6, 9, 12]) + 1


@pytest.mark.slow
def test_they_train_what_their_plan_forecasts(staged: Any, tmp_path: Path) -> None:
    """Also where epochs have other clips each, and a stage leaves one before its end."""
    bucket = [{"resolution": "48px", "num_frames": 1, "batch_size": 2, "keep_prob": 0.6}]
    drawn = [{"name": "clips", "clips": 20}, {"name": "epochs", "epochs": 3}, {"name": "steps", "steps": 7}]
    recipe = staged("run", *({**stage, "bucket": bucket} for stage in drawn))
    assert children.train(recipe) == [0]
    found = stage_forecast.forecast(recipe_file.parse(recipe), lambda one: None, world=1)
    run, done = tmp_path / "run", steps(tmp_path / "run")
    firsts = dict(starts(run))
    assert [(stage.name, stage.first_step) for stage in found.stages] == list(firsts.items())
    assert found.steps == done[-1]["step"]
    begun = [event["stage"] for event in events.read(RunFolder(run).events_file, "start")]
    expected = [asdict(stage_forecast.start_of(recipe_file.parse(recipe), index, world=1)) for index in range(3)]
    assert [{key: stage[key] for key in ("name", "step", "epoch", "clips")} for stage in expected] == [
        {key: stage[key] for key in ("name", "step", "epoch", "clips")} for stage in begun
    ]
    for stage in found.stages:
        of_stage = done[stage.first_step : stage.first_step + stage.steps]
        assert stage.is_exact
        assert stage.clips == sum(step["clips"] for step in of_stage)
    assert found.stages[0].clips in (20, 21)
    assert found.stages[1].epochs == 3

    # Without its last stage, and with another end of the first.
    other = recipe | {"stage": [{**recipe["stage"][0], "clips": 12}, recipe["stage"][1]]}
    before, after = (recipe_file.parse(each) for each in (recipe, other))
    shorter = stage_forecast.forecast(after, lambda one: None, world=1)
    compared = stage_forecast.compare((before, found), (after, shorter))
    assert {"stage.0.clips", "stage.2.name"} <= {change.key for change in compared.keys}
    steps_of = {stage.name: {one.name: (one.a, one.b) for one in stage.figures}["steps"] for stage in compared.stages}
    assert steps_of == {
        stage.name: (stage.steps, of_other.steps if of_other else 0)
        for stage, of_other in zip(found.stages, [*shorter.stages, None], strict=True)
    }
    assert steps_of["clips"][0] > steps_of["clips"][1]


@pytest.mark.slow(reason="four gloo processes")
def test_stages_train_alike_on_other_numbers_of_ranks(staged: Any, tmp_path: Path) -> None:
    recipe = staged(train={"micro_batches_per_step": 4, "same_bucket_run": 2})
    assert children.train(recipe, world=2, fault=("after the optimizer stepped", 2)) != [0, 0]
    assert children.train(recipe, world=4, fault=("after the optimizer stepped", 2)) != [0] * 4
    assert children.train(recipe, debug=True) == [0]
    (epoch,) = ends(tmp_path / "run", 1)
    assert epoch["trained"] == epoch["planned"]


def test_what_is_about_one_stage_asks_for_it_and_stages_are_compared_with_stages(staged: Any, tmp_path: Path) -> None:
    for name, recipe in (("staged", staged()), ("plain", {**staged(), "stage": []})):
        recipe["train"]["max_steps"] = 4
        (tmp_path / f"{name}.toml").write_text(tomli_w.dumps(recipe), encoding="utf-8")
    both = [str(tmp_path / "staged.toml"), str(tmp_path / "plain.toml")]
    for typed, code in (
        ([both[0], "--html", str(tmp_path / "plan.html")], "stage-not-chosen"),
        ([*both, "--diff"], "stages-of-one-recipe"),
    ):
        told = json.loads(CliRunner().invoke(app, ["plan", *typed, "--json"]).stdout)
        assert told["error"]["code"] == code
