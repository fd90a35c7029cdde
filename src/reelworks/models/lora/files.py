"""Write LoRA files in the conventions of diffusers, ComfyUI and kohya.

All three hold two matrices for each layer. They differ in names, in the place of alpha, and in their layers: the last
two use the layers of a model's first release, some of which are several layers in diffusers. The update of such a
layer joins those of its parts: their A are stacked, their B are blocks along the diagonal, and no number changes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from reelworks.models import registry
from reelworks.models.lora import inject, key_mapping
from reelworks.models.lora.base_model import Base
from reelworks.models.lora.key_mapping import METADATA, Place, swapped_halves

Format = Literal["diffusers", "comfyui", "kohya"]
BASE = "reelworks_base"  # header key of the base's description


class File(NamedTuple):
    """The contents of a LoRA file.

    Attributes:
        tensors: Tensors by their names in the file; alphas are float32.
        header: Metadata of the file's header.
    """

    tensors: dict[str, Tensor]
    header: dict[str, str]


def to_file(
    state: Mapping[str, Tensor],
    format: Format,
    *,
    alpha: float,
    part: str = "transformer",
    model: str = "",
    base: Base | None = None,
) -> File:
    """Return the file of a LoRA in a convention.

    Args:
        state: The LoRA's tensors by their names in the network (`inject.weights`).
        format: Name of a convention that can hold it (`LoraConfig.require_writable`).
        alpha: Updates are scaled by alpha / rank.
        part: Folder of the network in a pipeline of diffusers.
        model: Preset of the base.
        base: Base weights, for the header.
    """
    layers: dict[str, dict[str, Tensor]] = {}
    for key, (layer, kind) in inject.parts(state).items():
        layers.setdefault(layer, {})[kind] = state[key]
    (rank,) = {kinds["A"].shape[0] for kinds in layers.values()}
    header = _header(model, rank, alpha)
    if base is not None:
        header |= {BASE: base.to_json(), "ss_sd_model_name": base.weights or base.model}
    if format == "diffusers":
        dora = any("magnitude_vector" in kinds for kinds in layers.values())
        settings = {"r": rank, "lora_alpha": alpha, "target_modules": sorted(layers), "use_dora": dora}
        header[METADATA] = json.dumps({f"{part}.{key}": value for key, value in settings.items()})
        return File(_diffusers_tensors(layers, part), header)
    tensors = {}
    for name, parts in _released(layers, model, format).items():
        stem = f"diffusion_model.{name}" if format == "comfyui" else "lora_unet_" + name.replace(".", "_")
        a, b = ("lora_A", "lora_B") if format == "comfyui" else ("lora_down", "lora_up")
        tensors[f"{stem}.{a}.weight"], tensors[f"{stem}.{b}.weight"] = _joined(parts)
        # Without alpha the scale is 1, and some readers of ComfyUI's files ignore alpha.
        if format == "kohya" or alpha != rank:
            tensors[f"{stem}.alpha"] = torch.tensor(alpha * len(parts))
    return File(tensors, header)


def _diffusers_tensors(layers: Mapping[str, Mapping[str, Tensor]], part: str) -> dict[str, Tensor]:
    endings = {"A": "lora_A.weight", "B": "lora_B.weight", "magnitude_vector": "lora_magnitude_vector"}
    return {
        f"{part}.{layer}.{endings[kind]}": value for layer, kinds in layers.items() for kind, value in kinds.items()
    }


def _released(
    layers: Mapping[str, Mapping[str, Tensor]], model: str, format: Format
) -> dict[str, list[tuple[Place, Mapping[str, Tensor]]]]:
    """Return the parts of each layer of the release, with the place of each."""
    config = registry.PRESETS[model].config if model in registry.PRESETS else None
    if format == "comfyui" and config is not None and config.network.comfyui_layers == "diffusers":
        config = None
    released: dict[str, list[tuple[Place, Mapping[str, Tensor]]]] = {}
    for layer, kinds in layers.items():
        place = key_mapping.place(config, layer)
        released.setdefault(place.layer, []).append((place, kinds))
    return {name: sorted(parts, key=lambda pair: pair[0].part) for name, parts in released.items()}


def _joined(parts: list[tuple[Place, Mapping[str, Tensor]]]) -> tuple[Tensor, Tensor]:
    """Join A and B of a layer's parts; parts without an adapter get rows of zeros."""
    (place, first), rank = parts[0], parts[0][1]["A"].shape[0]
    if place.heights == (1,):
        return first["A"], swapped_halves(first["B"]) if place.swapped else first["B"]
    unit = first["B"].shape[0] // place.heights[place.part]
    B = first["B"].new_zeros(unit * sum(place.heights), rank * len(parts))
    for i, (place, kinds) in enumerate(parts):
        top = unit * sum(place.heights[: place.part])
        B[top : top + kinds["B"].shape[0], rank * i : rank * (i + 1)] = kinds["B"]
    return torch.cat([kinds["A"] for _, kinds in parts]), B


def _header(model: str, rank: int, alpha: float) -> dict[str, str]:
    """Return the header fields of ModelSpec and those that kohya's readers expect."""
    release = registry.release_of(model) if model in registry.PRESETS else None
    header = {
        "modelspec.sai_model_spec": "1.0.1",
        "modelspec.architecture": f"{(release and release.architecture) or model}/lora",
        "modelspec.implementation": "diffusers",
        "modelspec.title": f"LoRA of {model}",
        "ss_network_module": "networks.lora",
        "ss_network_dim": str(rank),
        "ss_network_alpha": str(alpha),
    }
    if release is not None and release.base_version is not None:
        header["ss_base_model_version"] = release.base_version
    return header
