"""The likely mistakes of a new user: one screen with field, value and remedy, and a non-zero exit."""

from __future__ import annotations

import sys
from pathlib import Path

import children
import pytest
import torch
from presets import config_of, network_of
from safetensors.torch import save_file

from reelworks.commands import main
from reelworks.core import files
from reelworks.data.run import lock
from reelworks.data.run.folder import RunFolder
from reelworks.models import registry
from reelworks.training.recipe import recipe_file


@pytest.fixture
def reelworks(monkeypatch, capsys):
    """Type a command; returns exit code and what it printed as error."""

    def run(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["reelworks", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main.main()
        return int(left.value.code or 0), capsys.readouterr().err

    return run


@pytest.fixture
def written(tmp_path):
    """Write a recipe, as values or with lines of it replaced."""

    def write(values, **replace: str) -> Path:
        text = recipe_file.dump(recipe_file.parse(values))
        for former, latter in replace.items():
            assert former in text
            text = text.replace(former, latter)
        path = tmp_path / "recipe.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def expect(result: tuple[int, str], *words: str) -> None:
    """One screen that names each word, and says what to do."""
    code, text = result
    assert code == 2
    for word in (*words, "remedy:"):
        assert word in text
    assert "Traceback" not in text
    assert len(text.splitlines()) <= 24


def test_a_missing_folder(reelworks, tmp_path):
    result = reelworks("scan", tmp_path / "nowhere", "-o", tmp_path / "catalog")
    expect(result, "nowhere", "no such folder")


def test_an_empty_folder(reelworks, tmp_path):
    (tmp_path / "empty").mkdir()
    expect(reelworks("scan", tmp_path / "empty", "-o", tmp_path / "catalog"), "empty", ".mp4")


def test_a_missing_recipe(reelworks, tmp_path):
    expect(reelworks("train", tmp_path / "recipe.toml"), "recipe.toml", "recipes/")


def test_a_misspelt_key(reelworks, tiny, written):
    recipe = written(tiny(), learning_rate="learning_rte")
    expect(reelworks("train", recipe), "train.learning_rte", '"learning_rate"')


def test_a_wrong_type(reelworks, tiny, written):
    recipe = written(tiny(), **{"max_steps = 6": 'max_steps = "six"'})
    expect(reelworks("plan", recipe), "train.max_steps", "'six'", "whole number")


def test_no_captions(reelworks, tiny, written, footage, tmp_path):
    silent = tmp_path / "silent"
    silent.mkdir()
    for clip in footage.glob("*.mp4"):
        (silent / clip.name).write_bytes(clip.read_bytes())
    recipe = written(tiny(dataset=[{"path": str(silent)}]))
    expect(reelworks("train", recipe), "no_caption", ".txt")


def test_a_batch_too_large_for_memory(reelworks, tiny, written, monkeypatch):
    """Memory is limited for real: the rehearsal of the largest bucket fails before the first step."""
    entry = {"resolution": "32px", "num_frames": [1, 5], "batch_size": [1, 60_000]}
    recipe = tiny(bucket=[entry], buckets={"incomplete_batch": "pad"})
    code = children.in_child(_train_in_little_memory, recipe)
    text = children.output(recipe)
    expect((code, text.replace("starting fresh\n", "")), "bucket.batch_size", "60000", "gradient_checkpointing")


def _train_in_little_memory(recipe: dict) -> None:
    import resource

    from reelworks.core.errors import UserError
    from reelworks.training.loop.request import TrainRequest
    from reelworks.training.loop.trainer import run

    used = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (2 << 30),) * 2)  # the latents alone would take 3.7 GB
    try:
        run(recipe_file.parse(recipe), TrainRequest())
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def test_no_right_to_write(reelworks, tiny, written):
    # Not even root may make folders here.
    recipe = written(tiny(output="ignored"))
    expect(reelworks("train", recipe, "--output", "/proc/reelworks"), "/proc/reelworks", "output", "name a place")


def test_an_unknown_model(reelworks, tiny, written):
    recipe = written(tiny(), **{"stdit3-tiny": "stdit3-tny"})
    expect(reelworks("plan", recipe), "model.name", "stdit3-tny", "stdit3-tiny")


def test_weights_of_another_model(reelworks, tiny, written, tmp_path, monkeypatch):
    """Found among the tiny ones; `test_known.py` looks among all, which takes seconds to build."""
    monkeypatch.setattr(registry, "PRESETS", {n: p for n, p in registry.PRESETS.items() if n.endswith("-tiny")})
    torch.manual_seed(0)
    module = network_of(config_of("wan-tiny"))
    file = tmp_path / "wan.safetensors"
    save_file({name: value.contiguous() for name, value in module.state_dict().items()}, file)
    recipe = written(tiny(model={"weights": str(file)}))
    expect(reelworks("train", recipe), "model.weights", "missing", "weights of wan-tiny", 'name = "wan-tiny"')


def test_a_checkpoint_of_another_model(reelworks, tiny, written):
    assert children.train(tiny(train={"max_steps": 1})) == [0]
    recipe = written(tiny(model={"hidden_size": 64}))
    expect(reelworks("train", recipe), "another model", "final_layer", "expected", "in the checkpoint")


def test_a_second_training_in_the_same_folder(reelworks, tiny, written):
    recipe = tiny()
    Path(recipe["output"]).mkdir()
    with lock.hold(RunFolder(Path(recipe["output"])).lock_file):
        expect(reelworks("train", written(recipe)), "another training", "process", "--output")


def test_no_clip_fits(reelworks, tiny, written):
    values = tiny(bucket=[{"resolution": "32px", "num_frames": [65, 129]}])
    expect(reelworks("plan", written(values)), "32px ×65: 0 clips", "num_frames", "upscale")
    values = tiny(bucket=[{"resolution": "32px", "num_frames": [1, 5], "keep_prob": 1e-9}])
    expect(reelworks("plan", written(values)), "not_drawn", "keep_prob")


def test_a_bad_option_of_the_command_line(reelworks, tmp_path):
    code, text = reelworks("train", tmp_path / "x.toml", "--max-steps", "0")
    assert code == 2
    assert "--max-steps" in text


def test_generate_without_a_run_and_with_a_wrong_suffix(reelworks, tmp_path):
    common = ["generate", tmp_path, "--prompt", "x"]
    expect(reelworks(*common, "-o", tmp_path / "out.mp4"), str(tmp_path), "no run")
    expect(reelworks(*common, "-o", tmp_path / "out.avi"), "out.avi", ".mp4")
    weights = tmp_path / "lora.safetensors"
    weights.touch()
    expect(reelworks("generate", weights, "--prompt", "x", "-o", "a.png"), "a file, not a run", "lora.weights")


@pytest.mark.parametrize("fps", ["inf", "nan", "1000", "0"])
def test_generate_at_an_impossible_rate(reelworks, tmp_path, fps):
    code, text = reelworks("generate", tmp_path, "--prompt", "x", "-o", tmp_path / "out.mp4", "--fps", fps)
    assert code == 2
    assert "--fps" in text
    assert "Traceback" not in text


def test_report_of_no_run(reelworks, tmp_path):
    expect(reelworks("report", tmp_path), "no run")
    files.write_json(tmp_path / "run.json", {"format": 99})
    expect(reelworks("report", tmp_path), "format 99", "update")
