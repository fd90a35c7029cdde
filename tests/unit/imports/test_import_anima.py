"""Anima is told by each trainer in its own words, and by its weights where it is the one of 2.9B."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from former_configs import converted

BASE = "circlestone-labs/Anima-Base-v1.0-Diffusers"
ONETRAINER = {"model_type": "ANIMA", "training_method": "LORA", "layer_filter": "attn1,attn2,ff", "concepts": []}
SIMPLETUNER = {"model_family": "anima", "model_type": "lora", "max_train_steps": 9}
LINEAR = ["to_q", "to_k", "to_v", "to_out.0", "net.0.proj", "net.2"]


def ai_toolkit(weights: str) -> dict[str, Any]:
    process = {
        "type": "sd_trainer",
        "network": {"type": "lora", "linear": 4, "linear_alpha": 4},
        "train": {"steps": 9},
        "model": {"name_or_path": weights, "arch": "anima"},
    }
    return {"job": "extension", "config": {"name": "x", "process": [process]}}


@pytest.mark.parametrize(
    ("config", "preset", "weights", "targets"),
    [
        (ONETRAINER | {"base_model_name": BASE}, "anima", BASE, LINEAR),
        (ONETRAINER | {"base_model_name": "Anima-2.9B.safetensors"}, "anima-2.9b", "Anima-2.9B.safetensors", LINEAR),
        (ai_toolkit(BASE), "anima", BASE, "blocks"),
        (ai_toolkit("mine/Anima-2.9B"), "anima-2.9b", "mine/Anima-2.9B", "blocks"),
        (SIMPLETUNER | {"model_flavour": "base-v1.0"}, "anima", BASE, "default"),
        (SIMPLETUNER, "anima", "CalamitousFelicitousness/Anima-Preview-3-sdnext-diffusers", "default"),
    ],
)
def test_each_trainer_has_its_words(tmp_path: Path, config: Any, preset: str, weights: str, targets: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    _, recipe = converted(tmp_path, tmp_path / "config.json")
    assert (recipe.model.name, recipe.model.weights) == (preset, weights)
    assert (recipe.autoencoder.name, recipe.text_encoder.name) == ("qwen-image", "anima")
    assert recipe.lora is not None
    assert recipe.lora.targets == targets


@pytest.mark.parametrize(
    ("file", "preset"), [("anima-base-v1.0.safetensors", "anima"), ("Anima-2.9B-preview-v1.safetensors", "anima-2.9b")]
)
def test_diffusion_pipe_names_files_of_comfyui(tmp_path: Path, file: str, preset: str) -> None:
    (tmp_path / "data.toml").write_text('resolutions = [512]\n[[directory]]\npath = "a"\n', encoding="utf-8")
    (tmp_path / "main.toml").write_text(
        f'dataset = "data.toml"\nepochs = 1\n[model]\ntype = "anima"\ntransformer_path = "/models/{file}"\n'
        '[adapter]\ntype = "lora"\nrank = 4\n[optimizer]\ntype = "adamw"\nlr = 2e-5\n',
        encoding="utf-8",
    )
    _, recipe = converted(tmp_path, tmp_path / "main.toml", tmp_path / "data.toml")
    assert (recipe.model.name, recipe.model.weights) == (preset, f"/models/{file}")
    assert (recipe.objective.timestep_sampling, recipe.objective.timestep_shift) == ("logit-normal", "none")
    assert recipe.exports.formats == ["comfyui"]
