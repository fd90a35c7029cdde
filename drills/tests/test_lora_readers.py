"""A few tries of the drills of other programs' readers, and that a wrong file is found."""

from __future__ import annotations

import random
from pathlib import Path

import diffusers_readers as readers
import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from drills._borders.readers import DRILLS
from reelworks.models.adapters.config import LoraConfig


@pytest.mark.parametrize("name", DRILLS)
def test_a_drill_goes_right(name: str, tmp_path: Path) -> None:
    assert DRILLS[name](random.Random(name), tmp_path) == []


@pytest.mark.parametrize("fault", ["none", "half of the scale", "one name"])
def test_a_wrong_file_is_found(tmp_path: Path, fault: str) -> None:
    """By plain diffusers, as everything that is not what was trained."""
    path = tmp_path / "adapter.safetensors"
    settings = LoraConfig(rank=3, alpha=2.3, targets="blocks")
    wanted = readers.written(random.Random(0), "wan-tiny", settings, "comfyui", path)
    tensors = load_file(path)
    with safe_open(path, "pt") as file:
        header = file.metadata()
    key = next(key for key in tensors if "lora_B" in key)
    if fault == "half of the scale":
        tensors[key] /= 2
    elif fault == "one name":
        layer = key.removesuffix(".lora_B.weight")
        tensors = {name.replace(layer, layer.replace("blocks.0", "blocks.1")): value for name, value in tensors.items()}
    save_file(tensors, path, header)
    problem = readers.misread(readers.through_pipeline, "wan-tiny", path, wanted)
    assert (problem is None) == (fault == "none")
