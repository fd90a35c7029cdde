"""A LoRA that was trained by another trainer goes on here: files with its names and metadata are read exactly.

The names are those that ai-toolkit's `convert_lora_weights_before_save` and `get_state_dict` give, and those of SimpleTuner's
pipelines and of LyCORIS.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from adapters import adapted
from safetensors.torch import save_file
from torch import Tensor

from reelworks.models import registry
from reelworks.models.adapters import files, inject
from reelworks.models.adapters.config import LoraConfig
from reelworks.testing import contract

_WAN = (
    ("attn1", "self_attn"),
    ("attn2", "cross_attn"),
    ("to_out.0", "o"),
    ("ffn.net.0.proj", "ffn.0"),
    ("ffn.net.2", "ffn.2"),
)


def of_transformer(layer: str) -> str:
    return f"transformer.{layer}"


def of_diffusion_model(layer: str) -> str:
    return f"diffusion_model.{layer}"


def of_wan(layer: str) -> str:
    for old, new in _WAN:
        layer = layer.replace(old, new)
    return "diffusion_model." + re.sub(r"to_([qkv])", r"\1", layer)


def of_lycoris(layer: str) -> str:
    return f"lycoris_{layer.replace('.', '_')}"


def stored(module: torch.nn.Module, name: Callable[[str], str], kinds: Mapping[str, str]) -> dict[str, Tensor]:
    """The tensors of a network's adapter in a trainer's names: `kinds` has its name for each of ours."""
    layers = inject.group_by_layer(inject.weights(module))
    return {
        f"{name(layer)}.{kinds[kind]}": value.detach().half().clone()
        for layer, parts in layers.items()
        for kind, value in parts.items()
    }


def read_again(preset: str, settings: LoraConfig, path: Path) -> dict[str, Tensor]:
    denoiser = contract.build(preset)
    inject.inject(denoiser, settings, seed=1)
    files.load_into(
        denoiser.module, settings.model_copy(update={"weights": str(path)}), registry.PRESETS[preset].config
    )
    return inject.weights(denoiser.module)


PEFT = {"A": "lora_A.weight", "B": "lora_B.weight"}
AI_TOOLKIT = {
    "flux-tiny": of_transformer,
    "qwen-image-tiny": of_diffusion_model,
    "z-image-tiny": of_diffusion_model,
    "wan-tiny": of_wan,
}


@pytest.mark.parametrize("preset", AI_TOOLKIT)
def test_a_lora_of_ai_toolkit(tmp_path: Path, preset: str) -> None:
    """It stores no alpha, and so has the scale 1."""
    settings = LoraConfig(rank=4, targets="blocks")
    own = adapted(preset, settings)
    path = tmp_path / "lora.safetensors"
    save_file(
        stored(own.module, AI_TOOLKIT[preset], PEFT),
        path,
        {"software": json.dumps({"name": "ai-toolkit"}), "format": "pt"},
    )
    found = read_again(preset, settings, path)
    assert all(torch.equal(value, inject.weights(own.module)[name].half().float()) for name, value in found.items())


@pytest.mark.parametrize(("name", "alpha"), [(of_diffusion_model, float("inf")), (of_lycoris, 1.0)])
def test_a_lokr_of_full_factors(tmp_path: Path, name: Callable[[str], str], alpha: float) -> None:
    """ai-toolkit stores an alpha of 9999999999, which float16 does not hold; LyCORIS one that has no effect."""
    settings = LoraConfig(type="lokr", rank=100_000, targets="default")
    own = adapted("qwen-image-tiny", settings)
    layers = inject.group_by_layer(inject.weights(own.module))
    kinds = {kind: kind for parts in layers.values() for kind in parts}
    assert kinds == {"lokr_w1": "lokr_w1", "lokr_w2": "lokr_w2"}
    tensors = stored(own.module, name, kinds)
    tensors |= {f"{name(layer)}.alpha": torch.tensor(alpha, dtype=torch.float16) for layer in layers}
    path = tmp_path / "lokr.safetensors"
    save_file(tensors, path)
    found = read_again("qwen-image-tiny", settings, path)
    assert all(torch.equal(value, inject.weights(own.module)[key].half().float()) for key, value in found.items())


def test_a_lora_of_simpletuner_keeps_its_scale(tmp_path: Path) -> None:
    """It stores peft's settings in the header, among them an alpha of half the rank."""
    settings = LoraConfig(rank=4, alpha=2.0, targets="default")
    own = adapted("wan-tiny", settings)
    path = tmp_path / "pytorch_lora_weights.safetensors"
    header = {"transformer.r": 4, "transformer.lora_alpha": 2, "transformer.target_modules": ["to_q", "to_k"]}
    save_file(stored(own.module, of_transformer, PEFT), path, {"lora_adapter_metadata": json.dumps(header)})
    found = read_again("wan-tiny", settings, path)
    assert all(torch.equal(value, inject.weights(own.module)[name].half().float()) for name, value in found.items())
