"""Write files of LoKr, LoHa and OFT: peft's for diffusers, and LyCORIS's keys as ComfyUI reads them.

Their scale is part of their numbers, as that of a LoRA is (`files`): alpha / rank, and 1 for a LoKr of two full factors.
Layers that are parts of one layer of the release: the products of a LoHa join as those of a LoRA do. A Kronecker
product of a part is none of the whole, so that a LoKr's part keeps its name in diffusers, which ComfyUI maps to rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from reelworks.models.lora import files, inject, key_mapping, lycoris_keys
from reelworks.models.lora.base_model import Base
from reelworks.models.lora.config import Adapter
from reelworks.models.lora.files import File, Format


def to_file(
    state: Mapping[str, Tensor],
    format: Format,
    *,
    adapter: Adapter,
    part: str = "transformer",
    model: str = "",
    base: Base | None = None,
) -> File:
    """Return the file of an adapter in a convention that can hold it (`LoraConfig.require_writable`).

    Args:
        state: The adapter's tensors by their names in the network (`inject.weights`).
        adapter: The settings that it was trained with.
        part: Folder of the network in a pipeline of diffusers.
        model: Preset of the base, whose release names the layers.
        base: Base weights that the header describes.
    """
    layers = {
        layer: key_mapping.scaled(kinds, adapter.alpha / adapter.rank) if key_mapping.rank_of(kinds) else kinds
        for layer, kinds in inject.by_layer(state).items()
    }
    arguments = {"algo": adapter.type, "factor": adapter.decompose_factor or -1}
    header = files.release_header(model, format, adapter, base) | {
        "ss_network_module": "lycoris.kohya",
        "ss_network_args": json.dumps(arguments),
    }
    if format == "diffusers":
        settings = _peft_settings(adapter, layers)
        header[key_mapping.METADATA] = json.dumps({f"{part}.{key}": value for key, value in settings.items()})
        ending = {"oft_R": "oft_R.weight"}
        named = ((layer, kind, value) for layer, kinds in layers.items() for kind, value in kinds.items())
        return File({f"{part}.{layer}.{ending.get(kind, kind)}": value for layer, kind, value in named}, header)
    assert adapter.type != "oft", "checked with the recipe"
    if adapter.type == "loha":
        return File(_loha(layers, format, adapter.rank, model), header)
    return File(_lokr(layers, format, adapter.rank, model), header)


def _peft_settings(adapter: Adapter, layers: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Any]:
    """Return peft's settings of an adapter, as its config takes them."""
    settings: dict[str, Any] = {"peft_type": adapter.type.upper(), "target_modules": sorted(layers)}
    if adapter.type == "oft":
        return settings | {"r": 0, "oft_block_size": adapter.block_size}
    settings |= {"r": adapter.rank, "alpha": adapter.rank}
    if adapter.type == "lokr":
        settings["decompose_factor"] = adapter.decompose_factor or -1
        settings["decompose_both"] = adapter.decompose_both
    return settings


def _stem(layer: str, format: Format) -> str:
    return f"diffusion_model.{layer}" if format == "comfyui" else "lora_unet_" + layer.replace(".", "_")


def _loha(layers: Mapping[str, Mapping[str, Tensor]], format: Format, rank: int, model: str) -> dict[str, Tensor]:
    tensors = {}
    for name, parts in files.released(layers, model, format).items():
        stem = _stem(name, format)
        for A, B in lycoris_keys.HADA_PAIRS:
            pairs = [(place, {"A": kinds[A], "B": kinds[B]}) for place, kinds in parts]
            tensors[f"{stem}.{A}"], tensors[f"{stem}.{B}"] = files.joined(pairs)
        tensors[f"{stem}.alpha"] = torch.tensor(float(rank * len(parts)))
    return tensors


def _lokr(layers: Mapping[str, Mapping[str, Tensor]], format: Format, rank: int, model: str) -> dict[str, Tensor]:
    tensors, family = {}, files.family_of(model, format)
    for layer, kinds in layers.items():
        place = key_mapping.place(family, layer)
        is_whole = place.heights == (1,)
        assert is_whole or format == "comfyui", "checked with the recipe"
        stem = _stem(place.layer, format) if is_whole else f"transformer.{layer}"
        for kind, value in (lycoris_keys.swapped(kinds) if place.swapped else kinds).items():
            tensors[f"{stem}.{kind}"] = value
        tensors[f"{stem}.alpha"] = torch.tensor(float(rank))
    return tensors
