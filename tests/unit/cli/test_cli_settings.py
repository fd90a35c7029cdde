"""A setting of a recipe that is given as other trainers take it is answered with how it is given here."""

from __future__ import annotations

import subprocess
import sys

import pytest

from reelworks.cli import main


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["train", "r.toml", "train.max_steps=5"], "--set train.max_steps=5"),
        (["train", "r.toml", "--train.max_steps=5"], "--set train.max_steps=5"),
        (["train", "r.toml", "--train.max_steps", "5"], "--set train.max_steps=VALUE"),
        (["train", "r.toml", "dataset.0.path=my films"], "--set 'dataset.0.path=my films'"),
        (["train", "r.toml", "--set", "train.max_steps=x"], ""),
        (["train", "folder/r.toml", "--max-steps", "5"], ""),
    ],
)
def test_how_a_setting_is_given_is_told(arguments, told, capsys):
    main._tell_of_settings(arguments)
    said = capsys.readouterr().err
    assert told in said if told else not said


def test_it_is_told_below_the_mistake():
    command = [sys.executable, "-m", "reelworks", "train", "r.toml", "train.max_steps=5"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("--set train.max_steps=5")
