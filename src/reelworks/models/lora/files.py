"""LoRA files as they are written: in the conventions of diffusers, ComfyUI and kohya.

All three hold two matrices for each layer. They differ in names, in where alpha stands, and in what is a layer: the
last two use the layers of a model's first release, some of which are several layers here. The update of such a layer
is that of its parts below each other: their A stacked, and their B as blocks along the diagonal, so that no number
changes.
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
BASE = "reelworks_base"  # where the header tells the base


class File(NamedTuple):
    """A file to be written.

    Attributes:
        tensors: By their names in the file; alphas are float32.
        header: Texts beside them.
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
    """Give a LoRA the names of a convention.

    Args:
        state: Its tensors by their names in the network (`inject.weights`).
        format: Whose convention; which can hold it (`LoraConfig.require_writable`).
        alpha: The update counts alpha / rank.
        part: Folder of the network in a pipeline of diffusers.
        model: The preset that is its base.
        base: The weights that it was trained on, for the header.
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
        return File(_of_diffusers(layers, part), header)
    tensors = {}
    for name, parts in _released(layers, model, format).items():
        stem = f"diffusion_model.{name}" if format == "comfyui" else "lora_unet_" + name.replace(".", "_")
        a, b = ("lora_A", "lora_B") if format == "comfyui" else ("lora_down", "lora_up")
        tensors[f"{stem}.{a}.weight"], tensors[f"{stem}.{b}.weight"] = _joined(parts)
        # Without alpha an update counts once, and some readers of ComfyUI's files know no alpha.
        if format == "kohya" or alpha != rank:
            tensors[f"{stem}.alpha"] = torch.tensor(alpha * len(parts))
    return File(tensors, header)


def _of_diffusers(layers: Mapping[str, Mapping[str, Tensor]], part: str) -> dict[str, Tensor]:
    endings = {"A": "lora_A.weight", "B": "lora_B.weight", "magnitude_vector": "lora_magnitude_vector"}
    return {
        f"{part}.{layer}.{endings[kind]}": value
        for layer, kinds in layers.items()
        for kind, value in kinds.items()
    }


def _released(
    layers: Mapping[str, Mapping[str, Tensor]], model: str, format: Format
) -> dict[str, list[tuple[Place, Mapping[str, Tensor]]]]:
    """Gather the parts of each layer of the release."""
    config = registry.PRESETS[model].config if model in registry.PRESETS else None
    if format == "comfyui" and config is not None and config.network.comfyui_layers == "diffusers":
        config = None
    found: dict[str, list[tuple[Place, Mapping[str, Tensor]]]] = {}
    for layer, kinds in layers.items():
        place = key_mapping.place(config, layer)
        found.setdefault(place.layer, []).append((place, kinds))
    return {name: sorted(parts, key=lambda one: one[0].part) for name, parts in found.items()}


def _joined(parts: list[tuple[Place, Mapping[str, Tensor]]]) -> tuple[Tensor, Tensor]:
    """Make A and B of a layer from those of its parts; parts that are not adapted get rows of zeros."""
    (place, first), rank = parts[0], parts[0][1]["A"].shape[0]
    if place.heights == (1,):
        return first["A"], swapped_halves(first["B"]) if place.swapped else first["B"]
    unit = first["B"].shape[0] // place.heights[place.part]
    B = first["B"].new_zeros(unit * sum(place.heights), rank * len(parts))
    for i, (one, kinds) in enumerate(parts):
        top = unit * sum(one.heights[: one.part])
        B[top : top + kinds["B"].shape[0], rank * i : rank * (i + 1)] = kinds["B"]
    return torch.cat([kinds["A"] for _, kinds in parts]), B


def _header(model: str, rank: int, alpha: float) -> dict[str, str]:
    """Return the header that ModelSpec asks for and kohya's readers look up."""
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
