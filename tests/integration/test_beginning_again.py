"""--load, --weights-only, --restart-data and --resume, in every combination: none ends in an index error."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import children
import faults
import pytest
import torch
from refused import refused

from reelworks.data.checkpoint import load
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.training.assembly import build
from reelworks.training.loop import trainer
from reelworks.training.recipe import recipe_file
from reelworks.training.step.state import TrainState

# Where only the beginning matters: little to audit, nothing to validate.
BARE = {"buckets": {"aspect_ratios": ["1:1"]}, "validation": {"split": 0.0}}


def state_at(run: Path, step: int) -> dict:
    recipe = recipe_file.load(run / "recipe.toml")
    tensors = TrainState.start(build.denoiser(recipe, torch.device("cpu")), recipe.train).state_dict()
    load.load(CheckpointFolder(run / "checkpoints").path(step), tensors)
    return tensors


def steps(run: Path) -> list[int]:
    return [e["step"] for e in events.timeline(RunFolder(run).events_file, "step")]


def assert_averaged(average: dict, start: dict, weights: dict, *, steps: int) -> None:
    """Assert that an average of so many steps made one more, to these weights; the decay of step t, from 0, is (1 + t) / (10 + t)."""
    for name, value in average.items():
        expected = torch.lerp(start[name], weights[name], 1 - (1 + steps) / (10 + steps))
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-7)


@pytest.fixture(scope="module")
def trained(tiny_in, tmp_path_factory):
    """A run of two steps, which stays as it is."""
    folder = tmp_path_factory.mktemp("trained")
    assert children.train(tiny_in(folder, train={"max_steps": 2}, **BARE)) == [0]
    return folder / "run"


@pytest.fixture
def pretrained(trained, tmp_path):
    return Path(shutil.copytree(trained, tmp_path / "pretrained"))


@pytest.mark.parametrize("weights_only", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_another_run_brings_its_weights_and_not_its_place(tiny, tmp_path, pretrained, weights_only):
    """The story of the field: pretraining, then fine-tuning on a fraction of the clips."""
    few = tiny(
        "tuned",
        bucket=[{"resolution": "32px", "num_frames": 1, "batch_size": 2}],
        # A step too small to be seen: what is saved is what was loaded.
        train={"max_steps": 1, "learning_rate": 1e-30},
        checkpoints={"every_steps": 1},
        **BARE,
    )
    assert children.train(few, load=str(pretrained), weights_only=weights_only) == [0]
    before, after = state_at(pretrained, 2), state_at(tmp_path / "tuned", 1)
    for name, value in before["model"].items():
        torch.testing.assert_close(after["model"][name], value)
    if weights_only:
        assert_averaged(after["ema"], before["model"], before["model"], steps=0)
    else:
        assert_averaged(after["ema"], before["ema"], before["model"], steps=2)
    name = next(iter(after["optimizer"]["state"]))
    assert float(after["optimizer"]["state"][name]["step"]) == (1 if weights_only else 3)
    assert steps(tmp_path / "tuned") == [1]
    (start,) = events.read(RunFolder(tmp_path / "tuned").events_file, "start")
    assert start["resumed_from"] is None


@pytest.mark.slow
@pytest.mark.parametrize(("prediction", "told"), [("velocity", False), ("sample", True)])
def test_a_run_that_predicts_something_else_is_told(tiny, pretrained, prediction, told):
    """Its weights fit, and what they have learned to answer does not."""
    other = tiny("other", train={"max_steps": 1}, objective={"prediction": prediction}, **BARE)
    assert children.train(other, load=str(pretrained), weights_only=True) == [0]
    says = 'was trained with objective.prediction = "velocity", and the recipe has "sample"'
    assert (says in children.output(other)) == told


@pytest.mark.slow
def test_schedule_free_weights_that_are_loaded_alone_are_the_average(tiny, tmp_path):
    """What the run saved, validated and exported, and not the points that it trained on."""
    free = tiny("free", train={"max_steps": 3, "optimizer": "schedulefree", "learning_rate": 0.05}, **BARE)
    assert children.train(free) == [0]
    other = tiny("other", train={"max_steps": 1, **STILL}, checkpoints={"every_steps": 1}, **BARE)
    assert children.train(other, load=str(tmp_path / "free"), weights_only=True) == [0]
    assert "loaded the average from" in children.output(other)
    before, after = state_at(tmp_path / "free", 3), state_at(tmp_path / "other", 1)
    assert distance(before) > 0.01
    for name, value in before["ema"].items():
        torch.testing.assert_close(after["model"][name], value)


STILL = {"learning_rate": 1e-30}  # the weights that are loaded are those that are averaged


@pytest.fixture(scope="module")
def apart(tiny_in, tmp_path_factory):
    """A run whose average lies far from its weights, since its rate is high."""
    folder = tmp_path_factory.mktemp("apart")
    assert children.train(tiny_in(folder, train={"max_steps": 3, "learning_rate": 0.05}, **BARE)) == [0]
    return folder / "run"


def distance(tensors: dict) -> float:
    return sum(float((tensors["ema"][n] - tensors["model"][n]).norm()) ** 2 for n in tensors["ema"]) ** 0.5


def test_a_loaded_average_goes_on_with_its_own_age(tiny, tmp_path, apart):
    """Also after a resume of the run that loaded it, and in a run that loads that one."""
    before = state_at(apart, 3)
    assert distance(before) > 0.01
    once = tiny("once", train={"max_steps": 1, **STILL}, checkpoints={"every_steps": 1, "keep_last": 3}, **BARE)
    assert children.train(once, load=str(apart)) == [0]
    assert f"loaded weights, average (of 3 steps) and optimizer from {apart}" in children.output(once)
    first = state_at(tmp_path / "once", 1)
    assert_averaged(first["ema"], before["ema"], before["model"], steps=3)
    assert distance(first) == pytest.approx(distance(before) * 4 / 13, rel=1e-4)

    once["train"]["max_steps"] = 2
    assert children.train(once) == [0]
    second = state_at(tmp_path / "once", 2)
    assert_averaged(second["ema"], first["ema"], before["model"], steps=4)

    chained = tiny("chained", train={"max_steps": 1, **STILL}, **BARE)
    assert children.train(chained, load=str(tmp_path / "once")) == [0]
    assert "average (of 5 steps)" in children.output(chained)
    assert_averaged(state_at(tmp_path / "chained", 1)["ema"], second["ema"], before["model"], steps=5)


@pytest.mark.parametrize(
    ("train", "decay"),
    [
        pytest.param({"ema_decay": 0.25}, 0.25, id="a lower decay holds at once"),
        pytest.param({"ema_device": "cpu"}, 4 / 13, id="kept in CPU memory", marks=pytest.mark.slow),
    ],
)
def test_a_loaded_average_goes_on_with_the_settings_of_the_new_run(tiny, tmp_path, apart, train, decay):
    before = state_at(apart, 3)
    assert children.train(tiny("other", train={"max_steps": 1, **STILL, **train}, **BARE), load=str(apart)) == [0]
    after = state_at(tmp_path / "other", 1)
    for name, value in after["ema"].items():
        expected = torch.lerp(before["ema"][name], before["model"][name], 1 - decay)
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-7)


def test_without_an_average_in_one_of_the_runs_it_begins_from_the_weights(tiny, tmp_path, apart):
    before = state_at(apart, 3)
    none = tiny("none", train={"max_steps": 1, "learning_rate": 0.05, "ema_decay": 0.0}, **BARE)
    assert children.train(none, load=str(apart)) == [0]
    assert "; this one keeps no average (train.ema_decay = 0.0)" in children.output(none)
    without = state_at(tmp_path / "none", 1)
    assert distance(without) == 0 < distance(before)
    begun = tiny("begun", train={"max_steps": 1, "learning_rate": 0.05}, **BARE)
    assert children.train(begun, load=str(tmp_path / "none")) == [0]
    assert "; that run kept no average (train.ema_decay = 0.0)" in children.output(begun)
    after = state_at(tmp_path / "begun", 1)
    assert_averaged(after["ema"], without["model"], after["model"], steps=0)


def test_the_data_begin_again_and_the_steps_count_on(tiny, tmp_path):
    assert children.train(tiny(train={"max_steps": 3}, **BARE), debug=True) == [0]
    again = tiny(train={"max_steps": 6, "learning_rate": 5e-4}, **BARE)
    assert children.train(again, debug=True, restart_data=True) == [0]
    run = tmp_path / "run"
    assert steps(run) == [1, 2, 3, 4, 5, 6]
    lines = {line["step"]: line for line in children.debug_lines(run)}
    for step in (1, 2, 3):
        clips = [[clip["uid"] for clip in lines[s]["trained"]] for s in (step, step + 3)]
        assert clips[0] == clips[1], "the data begin as they began"
    assert "train.learning_rate: 0.001 then, 0.0005 now" in children.output(again)
    assert "the data restart at epoch 0" in children.output(again)
    # A scheduler that gives the same command after its end restarts nothing.
    assert children.train(again, debug=True, restart_data=True) == [0]
    assert "--restart-data has no effect: train.max_steps = 6 is reached" in children.output(again)
    assert "the data restart at epoch 0" not in children.output(again)


def generations(run: Path) -> list[int]:
    """Of each beginning of an epoch, in the order in which they happened."""
    return [e["data_restarts"] for e in events.read(RunFolder(run).events_file, "epoch") if e["epoch"] == 0]


@pytest.mark.slow(reason="nine trainings; test_run_history tells from events alone which data a start begins anew")
def test_a_command_that_is_given_again_after_a_kill_begins_the_data_once(tiny, tmp_path):
    """Killed before its first save, then preempted: the same command still comes to its end."""
    run = tmp_path / "run"
    assert children.train(tiny(train={"max_steps": 2})) == [0]
    command = tiny(train={"max_steps": 6})
    again = {"restart_data": True}
    assert children.train(command, fault=("after the optimizer stepped", 1), **again) != [0]
    assert children.in_child(_preempted, command) == 75
    assert generations(run) == [0, 1, 1]
    assert children.train(command, **again) == [0]
    assert "--restart-data has no effect: an earlier start restarted the data" in children.output(command)
    assert generations(run) == [0, 1, 1, 1]
    assert steps(run) == [1, 2, 3, 4, 5, 6]

    assert children.train(command, **again) == [0]
    told = children.output(command)
    assert "train.max_steps = 6 is reached" in told
    assert "the data restart" not in told
    *_, last = events.read(RunFolder(run).events_file)
    assert (last["kind"], last["reason"]) == ("stop", "finished")
    further = tiny(train={"max_steps": 9})
    assert children.in_child(_preempted, further) == 75
    assert generations(run)[-1] == 2, "those that it began are finished, so it begins them anew"
    assert children.train(further, **again, resume="8") == [0]
    assert generations(run)[-1] == 3, "a checkpoint is named, so they begin again unfinished"


def test_a_run_that_began_with_load_goes_on_with_its_data(tiny, tmp_path, trained):
    """A scheduler gives the same command again after a kill: the data that it began are finished first."""
    command = tiny("tuned", train={"max_steps": 4}, checkpoints={"every_steps": 2})
    again = {"restart_data": True, "load": str(trained)}
    assert children.train(command, fault=("after the optimizer stepped", 3), **again) != [0]
    assert children.train(command, **again) == [0]
    assert "--restart-data has no effect: the run began the data after --load" in children.output(command)
    assert generations(tmp_path / "tuned") == [0, 0]
    done = [(e["epoch"], e["plan_step"]) for e in events.read(RunFolder(tmp_path / "tuned").events_file, "step")]
    assert len(set(done)) == 4


def _preempted(recipe: dict) -> None:
    """Train until a scheduler asks to leave, in the first step; the second one is the last."""
    from reelworks.training.step.state import TrainState

    faults.at_call(TrainState, "update_ema", 1, faults.ask_to_leave)
    children.train_here(recipe, restart_data=True)


def test_keys_are_compared_with_those_that_the_checkpoint_was_trained_by(tiny, tmp_path):
    """A start in between, with other values, is not what a return to an earlier step comes from."""
    assert children.train(tiny(train={"max_steps": 2}, **BARE)) == [0]
    assert children.train(tiny(train={"max_steps": 4, "learning_rate": 5e-4}, **BARE)) == [0]
    back = tiny(train={"max_steps": 3, "learning_rate": 2e-4}, **BARE)
    assert children.train(back, resume="2") == [0]
    assert "train.learning_rate: 0.001 then, 0.0002 now" in children.output(back)
    assert "train.max_steps: 2 then, 3 now" in children.output(back)


def _train_each(recipe: dict, source: str, begun: bool) -> None:
    """Train every combination in a folder of its own, and tell what became of each."""
    from reelworks.core.errors import UserError
    from reelworks.training.loop.request import TrainRequest
    from reelworks.training.loop.trainer import run

    choices = itertools.product(["auto", "2", "never"], ["", source], [False, True], [False, True])
    became = []
    for number, (resume, taken, weights_only, scratch) in enumerate(choices):
        output = f"{recipe['output']}-{number}"
        if begun:
            shutil.copytree(source, output)
        one = recipe_file.parse({**recipe, "output": output})
        try:
            options = TrainRequest(
                resume=resume, load=Path(taken) if taken else None, weights_only=weights_only, restart_data=scratch
            )
            told = "" if run(one, options) == 0 else "no error"
        except UserError as error:
            told = str(error)
        became.append({"resume": resume, "load": taken, "weights_only": weights_only, "told": told})
    Path(recipe["output"] + ".json").write_text(json.dumps(became), encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("begun", [False, True])
def test_no_combination_ends_in_a_traceback(tiny, tmp_path, trained, begun):
    """In a folder where nothing was trained, and in one with a checkpoint of step 2: one step, or a remedy."""
    recipe = tiny(train={"max_steps": 3 if begun else 1}, catalog=str(tmp_path / "catalog"), **BARE)
    assert children.in_child(_train_each, recipe, str(trained), begun) == 0, children.output(recipe)
    became = json.loads(Path(recipe["output"] + ".json").read_text(encoding="utf-8"))
    assert len(became) == 24
    for one in became:
        refused = (
            (one["weights_only"] and not one["load"])
            or (one["resume"] == "2" and not begun)
            or (one["resume"] == "never" and begun)
        )
        assert ("remedy" in one["told"]) == refused, one
        assert bool(one["told"]) == refused, one


@pytest.mark.slow
def test_a_file_brings_weights_alone(tiny, tmp_path, pretrained):
    from safetensors.torch import save_file

    before = state_at(pretrained, 2)["model"]
    file, other = tmp_path / "weights.safetensors", tmp_path / "other.safetensors"
    save_file({name: value.contiguous() for name, value in before.items()}, file)
    save_file({"nothing.weight": torch.zeros(2)}, other)
    recipe = tiny("tuned", train={"max_steps": 1, "learning_rate": 1e-30}, checkpoints={"every_steps": 1})
    for source, options, said in (
        (file, {}, "add --weights-only"),
        (other, {"weights_only": True}, "these weights do not fit the model: "),
    ):
        assert children.train(recipe, load=str(source), **options) != [0]
        assert said in children.output(recipe)
    assert children.train(recipe, load=str(file), weights_only=True, world=2) == [0, 0]
    after = state_at(tmp_path / "tuned", 1)["model"]
    for name, value in before.items():
        torch.testing.assert_close(after[name], value)


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        ({"seed": 8}, "lora-of-another-base", "fresh weights"),
        (
            {"lora": {"rank": 2, "targets": ["qkv"]}},
            "checkpoint-state-differs",
            r"set back .*\(lora\.targets: default then",
        ),
    ],
)
def test_a_resume_whose_tensors_are_others_is_refused_with_their_cause(tiny, change, code, says):
    made = tiny(train={"max_steps": 1}, lora={"rank": 2}, **BARE)
    assert trainer.train(recipe_file.parse(made)) == 0
    made["train"]["max_steps"] = 2
    with refused(code, "checkpoint", says=says):
        trainer.train(recipe_file.parse(made | change))
