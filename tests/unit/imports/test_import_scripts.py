"""Scripts and command lines are read without being run, and what nobody can know of them is said."""

from __future__ import annotations

from pathlib import Path

import pytest
from refused import refused

from reelworks.annexes.imports import importer
from reelworks.annexes.imports.request import ImportRequest
from reelworks.annexes.imports.rules import Fate
from reelworks.training.recipe import recipe_file


def imported(folder: Path, text: str, name: str = "run.sh") -> tuple[importer.ImportResult, Path]:
    (folder / name).write_text(text, encoding="utf-8")
    recipe = folder / "recipe.toml"
    return importer.convert(ImportRequest(files=(folder / name,), output=recipe, clips=False)), recipe


TRAIN = (
    "accelerate launch sdxl_train_network.py --pretrained_model_name_or_path=/m/sdxl.safetensors --train_data_dir=/d"
)


def test_options_of_arrays_are_in_the_recipe(tmp_path: Path) -> None:
    _, recipe = imported(
        tmp_path,
        f'args=(--network_module networks.lora)\nargs+=(--learning_rate 3e-4 --network_dim 24)\n{TRAIN} "${{args[@]}}"\n',
    )
    read = recipe_file.load(recipe, [])
    assert (read.train.learning_rate, read.lora.rank) == (3e-4, 24)


@pytest.mark.parametrize("end", ["", " \\\\", " \\\\  ", " ^", " `"])
def test_a_command_line_goes_on_where_its_mark_is_lost(tmp_path: Path, end: str) -> None:
    """As pages and chats show command lines."""
    command = f"{TRAIN}{end}\n  --learning_rate 3e-4{end}\n  --network_module networks.lora --network_dim 24"
    recipe = tmp_path / "recipe.toml"
    importer.convert(ImportRequest(files=(), command=command, output=recipe, clips=False))
    read = recipe_file.load(recipe, [])
    assert (read.train.learning_rate, read.lora.rank) == (3e-4, 24)


def test_options_that_are_not_known_end_the_import(tmp_path: Path) -> None:
    """They would become defaults of the trainer."""
    with refused("script-not-followed", says=r"\$\{args\[@\]\} \(line 3\).*if \[ -f x"):
        imported(
            tmp_path, f'args=(--seed 1)\nif [ -f x ]; then args+=(--learning_rate 3e-4); fi\n{TRAIN} "${{args[@]}}"\n'
        )


def test_a_value_that_is_not_known_stands_with_its_reason(tmp_path: Path) -> None:
    made, _ = imported(tmp_path, f"{TRAIN} --output_dir $OUT --learning_rate 1e-4\n")
    (line,) = [key for key in made.keys if key.fate is Fate.UNREAD]
    assert (line.key, line.value) == ("$OUT", "the script does not set")


@pytest.mark.parametrize("before", ["", "set OUT=small\n"])
@pytest.mark.parametrize("condition", ["if exist big set OUT=big", "if exist big (\n  set OUT=big\n)"])
def test_what_a_batch_file_sets_under_a_condition_is_not_known(tmp_path: Path, before: str, condition: str) -> None:
    """Whether or not it is set before."""
    made, _ = imported(tmp_path, f"{before}{condition}\n{TRAIN} --output_dir %OUT% --learning_rate 1e-4\n", "run.bat")
    (line,) = [key for key in made.keys if key.fate is Fate.UNREAD]
    assert (line.key, line.value) == ("%OUT%", "is set under a condition")


@pytest.mark.parametrize(
    ("name", "text", "remedy"),
    [
        ("c.toml", '[general]\n[[datasets]]\nimage_directory = "C:\\data\\mug"\n', "write / for"),
        ("c.json", '{"a": 1, "b": [1, 2,],}', "remove the comma"),
    ],
)
def test_what_is_easily_wrong_is_told(tmp_path: Path, name: str, text: str, remedy: str) -> None:
    with refused("config-unreadable", says=remedy):
        imported(tmp_path, text, name)


def test_a_list_that_a_config_names_is_told_what_is_wrong_in_it(tmp_path: Path) -> None:
    (tmp_path / "data.json").write_text('[{"id": "a", "type": "local", "instance_data_dir": "/x",},]', encoding="utf-8")
    with refused("config-unreadable", says="remove the comma"):
        imported(
            tmp_path,
            '{"model_family": "sdxl", "model_type": "lora", "data_backend_config": "data.json"}',
            "config.json",
        )


@pytest.mark.parametrize(("switch", "model"), [("FLUX=true", "flux-dev"), ("FLUX='false'", "sdxl")])
def test_a_config_env_of_before_model_families(tmp_path: Path, switch: str, model: str) -> None:
    text = f'export MODEL_NAME=/m/x\nexport {switch}\nexport MODEL_TYPE=\'lora\'\nDATALOADER_CONFIG=data.json\nLEARNING_RATE=2e-5\nTRAINER_EXTRA_ARGS="--lora_rank=8"\nTRAINER_EXTRA_ARGS+=" --seed=3"\n'
    _, recipe = imported(tmp_path, text, "config.env")
    read = recipe_file.load(recipe, [])
    assert (read.model.name, read.lora.rank, read.train.learning_rate, read.seed) == (model, 8, 2e-5, 3)


@pytest.mark.parametrize(
    ("condition", "rank"),
    [
        ('$kind -eq "sdxl"', 24),
        ('$kind -ne "sdxl"', 8),
        ('$kind -eq "flux"', 8),
        ("$size -gt 512", 24),
        ("$size -gt 1024", 8),
        ("$size -ge 1024 -and -not $off", 24),
        ("-not $off -or $off -and $off", 8),  # which bind alike, from left to right
        ("-not $off -or ($off -and $off)", 24),
    ],
)
def test_a_branch_of_powershell_is_taken_as_it_takes_it(tmp_path: Path, condition: str, rank: int) -> None:
    """Which compares texts regardless of case, and numbers as numbers."""
    text = f"""
$kind = "SDXL"
$size = 1024
$off = $false
$rank = 8
if ({condition}) {{ $rank = 24 }}
{TRAIN} --network_module networks.lora --network_dim $rank
"""
    _, recipe = imported(tmp_path, text, "run.ps1")
    assert recipe_file.load(recipe, []).lora.rank == rank
