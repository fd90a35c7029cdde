"""A LoRA goes on here that OneTrainer or diffusion-pipe saved, in each of their conventions.

Names and scales are those of OneTrainer's `modules/util/convert_lora_util.py` (23df3832) and of diffusion-pipe's
`models/base.py:save_adapter` (8f83dbf): the former stores alpha beside the matrices, or makes it part of B; the latter's is
the rank, as its `adapter_config.json` says.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from reelworks.core.errors import UserError
from reelworks.models.adapters import files, inject, release_layers
from reelworks.models.adapters.config import LoraConfig
from reelworks.testing import contract

RANK, ALPHA = 4, 1.0
TARGETS = ["to_q", "to_k", "to_v", "to_out.0"]
OWN = {"hidream-i1-tiny": ["to_q", "to_k", "to_v", "to_out"]}
# What completes the layers of the release that the targets are parts of.
REST = {name: ["proj_mlp"] for name in ("flux-tiny", "chroma-tiny", "hunyuan-image-2.1-tiny", "longcat-image-tiny")}
REST["flux2-klein-tiny"] = ["to_qkv_mlp_proj"]
TINY = [
    "anima-tiny",
    "ernie-image-tiny",
    "hidream-i1-tiny",
    "hunyuan-image-2.1-tiny",
    "ideogram-4-tiny",
    "longcat-image-tiny",
    "lumina-image-2.0-tiny",
    "qwen-image-tiny",
    "z-image-tiny",
    "krea2-tiny",
    "chroma-tiny",
    "sd3-tiny",
    "flux2-klein-tiny",
    "sdxl-tiny",
]
ALL = ["flux-tiny", *(pytest.param(name, marks=pytest.mark.slow) for name in TINY)]


def trained(name: str, settings: LoraConfig) -> tuple[dict[str, dict[str, Tensor]], object, str]:
    """Random updates by layer, in which the parts of a layer of the release have one A, as when it is trained whole."""
    denoiser = contract.build(name)
    inject.inject(denoiser, settings, seed=0)
    layers = inject.group_by_layer(inject.weights(denoiser.module))
    generator = torch.Generator().manual_seed(0)
    for parts in release_layers.group_by_release(layers, denoiser.config).values():
        first = torch.randn(parts[0][1]["A"].shape, generator=generator)
        for _, kinds in parts:
            kinds["A"], kinds["B"] = first.clone(), torch.randn(kinds["B"].shape, generator=generator)
    return layers, denoiser.config, denoiser.config.network.part


def loaded(name: str, path: Path, settings: LoraConfig) -> dict[str, dict[str, Tensor]]:
    denoiser = contract.build(name)
    inject.inject(denoiser, settings, seed=1)
    files.load_into(denoiser.module, settings.model_copy(update={"weights": str(path)}), denoiser.config)
    return inject.group_by_layer(inject.weights(denoiser.module))


def joined(layers: dict, family: object) -> dict[str, tuple[Tensor, Tensor]]:
    """A and B of the layers of the release, whose parts lie on top of each other."""
    found = release_layers.group_by_release(layers, family)
    return {
        name: (parts[0][1]["A"], torch.cat([kinds["B"] for _, kinds in parts]))
        for name, parts in found.items()
        if len(parts) == len(parts[0][0].heights)
    }


def write(path: Path, convention: str, layers: dict, family: object, part: str) -> None:
    tensors: dict[str, Tensor] = {}
    if convention in ("legacy", "diffusers"):
        for layer, kinds in layers.items():
            if convention == "diffusers":
                tensors[f"{part}.{layer}.lora_A.weight"] = kinds["A"]
                tensors[f"{part}.{layer}.lora_B.weight"] = kinds["B"] * (ALPHA / RANK)
            else:
                stem = f"lora_{part}_{layer.replace('.', '_')}"
                tensors |= {f"{stem}.lora_down.weight": kinds["A"], f"{stem}.lora_up.weight": kinds["B"]}
                tensors[f"{stem}.alpha"] = torch.tensor(ALPHA)
    for layer, (a, b) in joined(layers, family).items() if not tensors else ():
        if convention == "kohya":
            stem, names = f"lora_unet_{layer.replace('.', '_')}", ("lora_down", "lora_up")
        else:
            stem, names = ("diffusion_model." if convention == "comfy" else "") + layer, ("lora_A", "lora_B")
        tensors |= {f"{stem}.{names[0]}.weight": a, f"{stem}.{names[1]}.weight": b}
        tensors[f"{stem}.alpha"] = torch.tensor(ALPHA)
    save_file({key: value.contiguous() for key, value in tensors.items()}, path)


@pytest.mark.parametrize("name", ALL)
def test_a_lora_of_onetrainer(tmp_path: Path, name: str) -> None:
    """Whether fused or split, with alpha beside the matrices or in them, its numbers are the same here."""
    settings = LoraConfig(rank=RANK, alpha=ALPHA, targets=[*OWN.get(name, TARGETS), *REST.get(name, [])])
    layers, family, part = trained(name, settings)
    assert joined(layers, family).keys() == release_layers.group_by_release(layers, family).keys()
    for convention in ("legacy", "diffusers", "comfy", "kohya", "original"):
        path = tmp_path / f"{convention}.safetensors"
        write(path, convention, layers, family, part)
        found = loaded(name, path, settings)
        assert found.keys() == layers.keys()
        for layer, kinds in layers.items():
            for kind, value in kinds.items():
                torch.testing.assert_close(found[layer][kind], value, msg=f"{convention} {layer} {kind}")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["loha", "lokr", "oft"])
def test_other_adapters_of_onetrainer(tmp_path: Path, kind: str) -> None:
    """LoHa, LoKr and OFT in its oldest convention, with alpha beside their factors."""
    chosen = {"block_size": 4} if kind == "oft" else {"rank": 2, "alpha": ALPHA}
    settings = LoraConfig(type=kind, targets=TARGETS[:3], **chosen)
    denoiser = contract.build("flux-tiny")
    inject.inject(denoiser, settings, seed=0)
    layers = inject.group_by_layer(inject.weights(denoiser.module))
    layers = {layer: {k: torch.randn(v.shape) for k, v in kinds.items()} for layer, kinds in layers.items()}
    tensors = {}
    for layer, kinds in layers.items():
        stem = f"lora_transformer_{layer.replace('.', '_')}"
        tensors |= {f"{stem}.{settings.kind.tensors[each]}": value for each, value in kinds.items()}
        tensors |= {} if kind == "oft" else {f"{stem}.alpha": torch.tensor(ALPHA)}
    save_file(tensors, tmp_path / "adapter.safetensors")
    found = loaded("flux-tiny", tmp_path / "adapter.safetensors", settings)
    assert all(
        torch.equal(found[layer][each], value) for layer, kinds in layers.items() for each, value in kinds.items()
    )


def test_a_lora_of_diffusion_pipe(tmp_path: Path) -> None:
    """Its folder has peft's settings beside the file; ComfyUI's names have no alpha."""
    settings = LoraConfig(rank=RANK, targets="blocks")
    layers, family, _ = trained("wan-tiny", settings)
    names = {release_layers.place(family, layer).layer: kinds for layer, kinds in layers.items()}
    path = tmp_path / "adapter_model.safetensors"
    tensors = {f"diffusion_model.{n}.lora_{kind}.weight": kinds[kind] for n, kinds in names.items() for kind in "AB"}
    save_file({key: value.contiguous() for key, value in tensors.items()}, path, metadata={"format": "pt"})
    (tmp_path / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "alpha_pattern": {}, "rank_pattern": {}}),
        encoding="utf-8",
    )
    found = loaded("wan-tiny", path, settings)
    assert all(torch.equal(found[layer][kind], layers[layer][kind]) for layer in layers for kind in "AB")


def test_a_dora_whose_magnitudes_are_those_of_columns_is_refused(tmp_path: Path) -> None:
    """OneTrainer's default: of a square weight, it has as many as there are rows."""
    settings = LoraConfig(rank=RANK, targets=["transformer_blocks.0.attn.to_q"], dora=True)
    layers, _, part = trained("flux-tiny", settings)
    ((layer, kinds),) = layers.items()
    stem = f"{part}.{layer}"
    columns = torch.ones(1, kinds["A"].shape[1])
    assert columns.shape[1] == kinds["B"].shape[0]
    tensors = {f"{stem}.lora_A.weight": kinds["A"], f"{stem}.lora_B.weight": kinds["B"]}
    for scale, taken in ((columns.T, True), (columns, False)):
        path = tmp_path / f"{taken}.safetensors"
        save_file({**tensors, f"{stem}.dora_scale": scale.contiguous()}, path)
        if taken:
            loaded("flux-tiny", path, settings)
            continue
        with pytest.raises(UserError, match="those of columns"):
            loaded("flux-tiny", path, settings)
