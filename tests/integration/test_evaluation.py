"""`reelworks eval` on runs, checkpoints, recipes and other data."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import children
import numpy as np
import one_save
import pytest
import tomli_w
from refused import refused

from reelworks.core.errors import UserError
from reelworks.core.words import of_recipe
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.inference.evaluate import held_out
from reelworks.inference.evaluate.evaluate import write
from reelworks.inference.evaluate.held_out import Evaluation
from reelworks.inference.evaluate.request import EvalRequest
from reelworks.training.recipe import recipe_file
from reelworks.training.recipe.dataset import RecipeData


def measured(path: Path, *, timesteps: int = 0, **which: Any) -> Evaluation:
    request = EvalRequest(source=path, timesteps=timesteps, **which)
    with of_recipe():  # as the command runs it
        return held_out.evaluate(request)


def trained(tiny: Any, tmp_path: Path) -> tuple[RunFolder, dict[int, dict[str, Any]], dict[str, Any]]:
    """Train four steps; returns the run, its validations by step, and the recipe."""
    recipe = tiny(train={"max_steps": 4}, validation={"every_steps": 2, "split": 0.5, "max_clips": 12})
    assert children.train(recipe) == [0], children.output(recipe)
    run = RunFolder(tmp_path / "run")
    return run, {event["step"]: event for event in events.timeline(run.events_file, "validation")}, recipe


def test_a_checkpoint_has_the_loss_that_training_measured(tiny: Any, tmp_path: Path) -> None:
    run, told, _ = trained(tiny, tmp_path)
    newest = measured(run.path)
    assert newest.validation.loss == told[4]["loss"]
    assert newest.validation.loss_by_time == told[4]["loss_by_time"]
    by_bucket = newest.validation.by_bucket
    assert {name: of.loss for name, of in by_bucket.items()} == told[4]["loss_by_bucket"]
    assert sum(of.clips for of in by_bucket.values()) == newest.validation.clips == newest.clips > 2

    together, apart = (measured(run.path, timesteps=10, batch_size=n) for n in (None, 3))
    found = [list(each.validation.loss_by_time.values()) for each in (together, apart)]
    np.testing.assert_allclose(*found, rtol=1e-5)
    np.testing.assert_allclose(together.timesteps, np.linspace(0, 1000, 12)[1:-1])
    assert len(found[0]) == 10
    (file,) = write(together, None)
    assert json.loads(file.read_text(encoding="utf-8"))["loss_by_time"] == together.validation.loss_by_time
    assert write(apart, None) == [file]
    assert write(newest, None) != [file]  # another question has another file


@pytest.mark.slow
def test_footage_that_lies_elsewhere_by_now_is_measured_where_it_is(tiny: Any, tmp_path: Path, footage: Path) -> None:
    """As on another machine: the same clips are held out, and have the loss that training measured; the run stays as it is."""
    shutil.copytree(footage, tmp_path / "before" / footage.name)
    recipe = tiny(dataset=[{"path": str(tmp_path / "before" / footage.name)}], train={"max_steps": 2})
    assert children.train(recipe) == [0], children.output(recipe)
    run = RunFolder(tmp_path / "run")
    (_, told) = events.timeline(run.events_file, "validation")
    (tmp_path / "before").rename(tmp_path / "now")
    before = one_save.listing(run.path / "catalog")
    with refused("no-clip-to-evaluate", says="none of the") as caught:
        measured(run.path)
    assert "--set dataset.0.path=FOLDER" in caught.value.remedy
    found = measured(run.path, overrides=(f"dataset.0.path={tmp_path / 'now' / footage.name}",))
    assert (found.validation.loss, found.validation.measured_on) == (told["loss"], told["measured_on"])
    assert one_save.listing(run.path / "catalog") == before


def test_a_held_out_clip_that_cannot_be_read_is_told_once(tiny: Any, tmp_path: Path) -> None:
    """And not at each validation; a loss without it is compared with the one before, that lacks it too."""
    run, _, recipe = trained(tiny, tmp_path)
    data = RecipeData.open(recipe_file.parse(recipe))
    path = data.rows.file(int(data.rows.find(data.held_out().uid)[0]))
    copy = shutil.copy2(path, tmp_path / path.name)
    path.write_bytes(bytes(path.stat().st_size))
    shutil.copystat(copy, path)
    try:
        changed = {"train": {**recipe["train"], "max_steps": 8}}
        assert children.train(recipe | changed) == [0], children.output(recipe)
    finally:
        shutil.copy2(copy, path)
    told = {event["step"]: event for event in events.timeline(run.events_file, "validation")}
    assert [(told[step]["unread"], told[step]["is_comparable"]) for step in (4, 6, 8)] == [
        (0, True),
        (1, False),
        (1, True),
    ]
    for line in ("a held-out clip could not be decoded", "a new series begins"):
        assert children.output(recipe).count(line) == 1
    assert [event["held_out"] for event in events.timeline(run.events_file, "failure")] == [True]


def test_losses_are_of_one_series_exactly_if_nothing_but_the_weights_can_change_them(tiny: Any, tmp_path: Path) -> None:
    """Keys of training alone leave the loss and its digest as they are; what reads or encodes a clip otherwise changes both."""
    written = tmp_path / "recipe.toml"
    written.write_text(tomli_w.dumps(tiny(validation={"split": 0.5, "max_clips": 4})), encoding="utf-8")

    def loss(*changes: str) -> tuple[float, str]:
        validation = measured(written, overrides=list(changes)).validation
        return validation.loss, validation.measured_on

    plain = loss()
    of_training = [
        "dataset.0.flip=0.5",
        "dataset.0.tag_dropout=0.5",
        "dataset.0.filter='height > 1'",
        "dataset.0.repeats=2",
    ]
    of_training += ["objective.caption_dropout=0.5", "objective.timestep_sampling='uniform'"]
    assert loss(*of_training, "objective.timestep_range=[100.0, 900.0]", "objective.loss='huber'") == plain
    others = [
        "autoencoder.std=0.25",
        "objective.prediction='sample'",
        "data.resize='area'",
        "dataset.0.caption='a {text}'",
    ]
    for changed in map(loss, others):
        assert changed[0] != plain[0]
        assert changed[1] != plain[1]


@pytest.mark.slow
def test_checkpoints_by_name_other_clips_and_the_weights_before_training(
    tiny: Any, tmp_path: Path, footage: Path, typed: Any
) -> None:
    run, told, recipe = trained(tiny, tmp_path)
    assert measured(run.path, step=2).validation.loss == told[2]["loss"]
    assert measured(run.path / "checkpoints" / "step-000000002").validation.loss == told[2]["loss"]
    best = min((2, 4), key=lambda step: told[step]["loss"])
    assert measured(run.path, best=True).source.step == best
    assert measured(run.path, raw_weights=True).validation.loss not in {event["loss"] for event in told.values()}

    catalog = (run.path / "catalog" / "catalog.json").read_bytes()
    everything = measured(run.path, data_path=footage)
    assert everything.clips == 17  # with those that were trained, more than the recipe's validation.max_clips
    assert (run.path / "catalog" / "catalog.json").read_bytes() == catalog

    written = tmp_path / "recipe.toml"
    written.write_text(tomli_w.dumps({**recipe, "output": str(tmp_path / "other")}), encoding="utf-8")
    untrained = measured(written)
    assert untrained.validation.loss == told[0]["loss"]
    assert untrained.file() is None
    assert not (tmp_path / "other" / "run.json").exists()
    listed = tmp_path / "prompts.txt"
    listed.write_text("a cat\na dog, running\n", encoding="utf-8")
    words = ("generate", run.path, "--prompt-file", listed, "--samples", 2, "-o", tmp_path / "vbench")
    sizes = ("--num-frames", 5, "--height", 32, "--width", 32, "--num-inference-steps", 1)
    told, code = typed(*words, *sizes)
    assert code == 0, told
    files = {path.name: path.read_bytes() for path in (tmp_path / "vbench").iterdir()}
    assert set(files) == {f"{prompt}-{i}.mp4" for prompt in ("a cat", "a dog, running") for i in range(2)}
    assert files["a cat-0.mp4"] != files["a cat-1.mp4"]  # of another seed
    (tmp_path / "vbench" / "a cat-1.mp4").unlink()
    assert "3 of 4 clips are there already" in typed(*words, *sizes)[0]
    assert (tmp_path / "vbench" / "a cat-1.mp4").read_bytes() == files["a cat-1.mp4"]
    told, code = typed("eval", "--generated", tmp_path / "vbench", "--metric", "motion", "--record", run.path)
    assert code == 0, told
    assert "eval/motion" in CheckpointFolder(run.checkpoints_folder).info(4).metrics

    with pytest.raises(UserError) as refused:
        measured(run.path, step=3)
    assert refused.value.code == "no-such-checkpoint"
    with pytest.raises(UserError) as refused:
        measured(run.path, overrides=["model.depth=2"])
    assert refused.value.code == "setting-of-a-checkpoint"


def test_a_recipe_without_held_out_clips_names_the_way_out(tiny: Any, tmp_path: Path) -> None:
    written = tmp_path / "recipe.toml"
    written.write_text(recipe_file.dump(recipe_file.parse(tiny(validation={"split": 0.0}))), encoding="utf-8")
    with pytest.raises(UserError, match="--data-path"):
        measured(written)
    with pytest.raises(UserError, match="no checkpoints"):
        measured(written, best=True)


@pytest.fixture
def typed(monkeypatch: Any, capsys: Any) -> Any:
    """Run the command line in this process; returns what it prints and its exit code."""
    from reelworks.commands import main

    def run(*words: Any) -> tuple[str, int]:
        monkeypatch.setattr(sys, "argv", ["reelworks", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main.main()
        said = capsys.readouterr()
        return said.out + said.err, int(left.value.code or 0)

    return run


def test_the_command_on_folders_and_results_of_vbench(typed: Any, tmp_path: Path, footage: Path) -> None:
    vbench = tmp_path / "a_eval_results.json"
    vbench.write_text('{"dynamic_degree": [0.25, []]}', encoding="utf-8")
    told, code = typed("eval", "--generated", footage, "--reference", footage, "--vbench", vbench, "--json")
    assert code == 0, told
    value = json.loads(told)
    found = {metric["name"]: metric for metric in value["metrics"]}
    assert found["psnr"]["value"] == 100.0
    assert found["motion"]["clips"] == 11  # pictures have none
    assert found["vbench/dynamic_degree"]["value"] == 0.25
    assert "--weights clip=PATH" in found["fid-clip"]["skipped"]
    assert [file["name"] for file in value["unreadable"]] == ["damaged"]
    assert "nothing is named" in typed("eval")[0]
    told, code = typed("eval", "--generated", footage, "--metric", "motion", "--weights", "clap=x")
    assert code == 2
    assert "clip, dinov2, inception, videomae" in told


STEADY = """
class Steadiness:
    name, higher_is_better, requires_reference = "steadiness", True, False

    def __init__(self, settings):
        self.clips = 0

    def value(self, clip):
        assert clip.caption == "a clip" and clip.frames.dtype.name == "uint8"
        return -float(abs(clip.frames.astype(float).mean() - 128))
"""


def test_a_metric_of_previews_decides_which_checkpoint_is_kept(tiny: Any, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(STEADY, encoding="utf-8")
    samples = {"prompts": ["a clip"], "every_steps": 1, "num_inference_steps": 1, "num_frames": 5, "height": 32}
    samples |= {"width": 32, "metrics": [f"{tmp_path}/own.py:Steadiness", "motion"]}
    best = {"metric": "samples/steadiness", "mode": "max"}
    recipe = tiny(
        train={"max_steps": 3, "learning_rate": 0.1, "ema_decay": 0.0},
        samples=samples,
        validation={"split": 0.0},
        checkpoints={"every_steps": 1, "keep_last": 1, "keep_best": best},
    )
    assert children.train(recipe) == [0], children.output(recipe)
    run = RunFolder(tmp_path / "run")
    values = {event["step"]: event["values"] for event in events.timeline(run.events_file, "metrics")}
    assert set(values) == {1, 2, 3}
    assert len({each["motion"] for each in values.values()}) == 3
    kept = CheckpointFolder(run.checkpoints_folder)
    best_step = max(values, key=lambda step: values[step]["steadiness"])
    assert kept.steps() == sorted({best_step, 3})
    assert kept.info(3).metrics["samples/steadiness"] == values[3]["steadiness"]

    recipe["samples"]["metrics"] = ["psnr"]
    assert children.train(recipe) != [0]
    assert "previews have none" in children.output(recipe)
