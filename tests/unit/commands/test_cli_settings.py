"""A setting of a recipe that is given as other trainers take it is answered with how it is given here."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from reelworks.commands import main, options
from reelworks.core import system


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["train", "r.toml", "train.max_steps=5"], "--set train.max_steps=5"),
        (["train", "r.toml", "--train.max_steps=5"], "--set train.max_steps=5"),
        (["train", "r.toml", "--train.max_steps", "5"], "--set train.max_steps=VALUE"),
        (["train", "r.toml", "dataset.0.path=my films"], f"--set {system.quoted('dataset.0.path=my films')}"),
        (["train", "r.toml", "--set", "train.max_steps=x"], ""),
        (["train", "folder/r.toml", "--max-steps", "5"], ""),
    ],
)
def test_how_a_setting_is_given_is_told(arguments, told, capsys):
    main._tell_of_settings(arguments)
    said = capsys.readouterr().err
    assert told in said if told else not said


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["train", "r.toml", "lr=1e-4"], "Here lr is --set train.learning_rate=VALUE"),
        (["train", "r.toml", "--lr", "1e-4"], "Here --lr is --set train.learning_rate=VALUE"),
        (["train", "r.toml", "--steps", "500"], "Here --steps is --max-steps N, or --set train.max_steps=N"),
        (["train", "--images", "cups"], "Here --images is --data DIR"),
        (["train", "r.toml", "--train_batch_size=4"], "--set buckets.batch_size=VALUE"),
        (["train", "lr.toml", "--debug"], ""),
        (["generate", "runs/a", "--steps", "20"], "Here --steps is --num-inference-steps N\n"),
        (["generate", "runs/a", "--cfg_scale", "4"], "Here --cfg_scale is --guidance-scale VALUE\n"),
    ],
)
def test_what_other_trainers_call_it_is_answered(arguments, told, capsys):
    main._tell_of_settings(arguments)
    said = capsys.readouterr().err
    assert told in said if told else not said


@pytest.mark.parametrize("command", ["generate", "report", "checkpoints ls"])
def test_only_what_a_command_takes_is_offered(command, capsys):
    shown = CliRunner().invoke(main.app, [*command.split(), "--help"]).output
    for other in (
        "train.max_steps=5",
        *(f"--{name}" for name in {tuple(ways): name for name, ways in main._ELSEWHERE.items()}.values()),
    ):
        main._tell_of_settings([*command.split(), "file", other])
        offered = set(re.findall(r"--[a-z_-]+", capsys.readouterr().err)) - {other}
        assert offered <= set(re.findall(r"--[a-z-]+", shown))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--version"], r"\d+\.\d+"),
        (["-h"], "Usage: reelworks"),
        (["train", "-h"], "Usage: reelworks train"),
        (["train", "cups"], "reelworks train --data cups --model NAME"),
        (["new", "lora", "--model", "sdxl", "--vram", "24 TB"], "not a number of gigabytes"),
        (["new", "lora", "--model", "nothing-like-it", "--vram", "24GB"], "no such model"),
        (["replay", "cups"], "reelworks replay cups 1"),
        (["replay", "cups", "15"], "not a run folder|no run|cups"),
    ],
)
def test_what_people_type_is_understood_or_answered(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cups").mkdir()
    done = CliRunner().invoke(main.app, arguments)
    assert re.search(said, done.output + str(done.exception)), (done.output, done.exception)


def test_help_is_a_word_too(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["reelworks", "help", "train"])
    monkeypatch.setattr(main.atexit, "register", lambda *_: None)
    with pytest.raises(SystemExit):
        main.main()
    assert "train [OPTIONS]" in capsys.readouterr().out


def test_it_is_told_below_the_mistake():
    command = [sys.executable, "-m", "reelworks", "train", "r.toml", "train.max_steps=5"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, encoding="utf-8")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("--set train.max_steps=5")


def test_data_of_the_command_line_are_a_dataset_of_their_own(tmp_path):
    """With the options of the recipe's first one, but for the folder to which paths of its list belong."""
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        'version = 1\noutput = "run"\nbucket = [{ resolution = "64px", num_frames = 1 }]\ntrain.max_steps = 1\n'
        'dataset = [{ path = "clips.csv", root = "clips", repeats = 3 }, { path = "others" }]\n',
        encoding="utf-8",
    )
    (dataset,) = options.load_recipe(recipe, None, tmp_path / "mine").dataset
    assert (dataset.path, dataset.root, dataset.repeats) == (str(tmp_path / "mine"), None, 3)
    assert len(options.load_recipe(recipe, None).dataset) == 2
