"""Write and read the files of LoRAs and adapters of other types in the conventions of diffusers, ComfyUI and kohya.

All three hold two matrices for each layer. They differ in names and in their layers: the last two use the layers of a
model's first release, some of which are several layers in diffusers. The update of such a layer joins those of its
parts: their A are stacked, their B are blocks along the diagonal, and no number changes.

The scale alpha / rank of an update is part of the numbers of a file, whose alpha is the rank: readers look for alpha in
different places, and each that overlooks it is right then. Files of any scale are read, exactly or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from reelworks.core import user_files
from reelworks.core.errors import UserError, first_few
from reelworks.core.log import logger
from reelworks.models import hub, registry
from reelworks.models.adapters import fit, inject, key_mapping, other_tensors, text_encoders
from reelworks.models.adapters.adapter_types.adapter_type import Adapter
from reelworks.models.adapters.adapter_types.registry import TYPES
from reelworks.models.adapters.config import LoraConfig
from reelworks.models.adapters.conventions import CONVENTIONS, Convention
from reelworks.models.adapters.key_mapping import METADATA
from reelworks.models.base_model import Base
from reelworks.models.family import FamilyConfig
from reelworks.models.storage import weights

BASE = "reelworks_base"  # header key of the base's description
_PEFT = ("adapter_model.safetensors", "adapter_config.json")  # the names of its file and of its settings


class LoraTensors(NamedTuple):
    """The contents of a LoRA file: tensors by their names in it, and its header's metadata."""

    tensors: dict[str, Tensor]
    header: dict[str, str]


def to_file(
    state: Mapping[str, Tensor],
    format: str,
    *,
    adapter: Adapter,
    part: str = "transformer",
    model: str = "",
    base: Base | None = None,
) -> LoraTensors:
    """Return the file of an adapter in a convention.

    Args:
        state: The adapter's tensors by their names in the network (`inject.weights`).
        format: Name of a convention that can hold it (`LoraConfig.require_writable`).
        adapter: The settings that it was trained with. Updates are scaled by alpha / rank, which becomes part of their
            numbers, except for a LoKr of two full factors, which has no scale.
        part: Folder of the network in a pipeline of diffusers.
        model: Preset of the base, whose release names the layers.
        base: Base weights that the header describes.
    """
    kind, convention, factor = TYPES[adapter.type], CONVENTIONS[format], adapter.alpha / adapter.rank
    layers = {
        layer: key_mapping.multiply(kind, kinds, factor) if kind.rank_of(kinds) else kinds
        for layer, kinds in inject.group_by_layer(state).items()
    }
    header = release_header(model, convention, adapter, base) | kind.header(adapter)
    texts = {layer: kinds for layer, kinds in layers.items() if text_encoders.part_of(layer) is not None}
    if texts:
        layers = {layer.removeprefix(f"{part}."): kinds for layer, kinds in layers.items() if layer not in texts}
    of_texts: dict[str, Tensor] = {}
    for layer, kinds in texts.items():
        stem = convention.text_stem(layer, is_only=registry.has_one_text_encoder(model))
        of_texts |= kind.named(stem or layer, kinds, convention, adapter.rank)
    if not convention.is_peft:
        family = registry.PRESETS[model].config if model in registry.PRESETS else None
        family = family if family is not None and convention.has_release_names(family.network) else None
        return LoraTensors(kind.released_tensors(layers, convention, adapter.rank, family) | of_texts, header)
    settings = {part: kind.peft_settings(adapter, layers)}
    for each in {text_encoders.part_of(layer): layer for layer in texts}:
        own = {text_encoders.within(layer): kinds for layer, kinds in texts.items() if layer.startswith(f"{each}.")}
        settings[str(each)] = kind.peft_settings(adapter, own)
    header |= settings_field(settings)
    named = [kind.named(f"{part}.{layer}", kinds, convention) for layer, kinds in layers.items()]
    return LoraTensors({name: value for tensors in named for name, value in tensors.items()} | of_texts, header)


def settings_field(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the header field with peft's settings of the parts of a pipeline."""
    return {
        METADATA: json.dumps({f"{part}.{key}": value for part, own in settings.items() for key, value in own.items()})
    }


def release_header(model: str, convention: Convention, adapter: Adapter, base: Base | None) -> dict[str, str]:
    """Return the header fields of ModelSpec, those that kohya's readers expect, and the description of the base."""
    release = registry.release_of(model) if model in registry.PRESETS else None
    header = {
        "modelspec.sai_model_spec": "1.0.1",
        "modelspec.architecture": f"{(release and release.architecture) or model}/lora",
        "modelspec.implementation": "diffusers",
        "modelspec.title": f"LoRA of {model}",
        "modelspec.usage_hint": convention.usage,
        "ss_network_module": "networks.lora",
        "ss_network_dim": str(adapter.rank),
        "ss_network_alpha": str(adapter.rank),
    }
    if adapter.alpha != adapter.rank:
        header["ss_training_comment"] = f"lora.alpha = {adapter.alpha:g}, which is part of the numbers"
    if release is not None and release.base_version is not None:
        header["ss_base_model_version"] = release.base_version
    if base is not None:
        base = base.for_others()
        header |= {BASE: base.to_json(), "ss_sd_model_name": base.weights or base.model}
    return header


@torch.no_grad()
def load_into(module: nn.Module, config: LoraConfig, family: FamilyConfig | None) -> None:
    """Load the file `config.weights` into a network with low-rank layers, exactly.

    Raises:
        UserError: The file cannot be read, belongs to another base, or has another rank or other layers; nothing is
            loaded then.
    """
    assert config.weights is not None
    own = dict(module.named_parameters())
    for name, value in read(config.weights, "lora.weights", own, config, family).items():
        own[name].copy_(value)


def read(
    source: str, field: str, own: Mapping[str, Tensor], config: LoraConfig, family: FamilyConfig | None
) -> dict[str, Tensor]:
    """Read a file for a network with low-rank layers and return its tensors by their names in the network.

    Tensors in `own` that are outside the LoRA are ignored; errors name the source by `field`.
    """
    with weights.telling(field, source, anew=False):
        metadata = header(source)
        tensors = updates_in(weights.read(source, field=field), source, field, with_texts=config.text_encoders)
        return fit.fit_to_network(tensors, metadata, own, config, family)


def updates_in(
    tensors: Mapping[str, Tensor], source: str, field: str, *, with_texts: bool = False
) -> Mapping[str, Tensor]:
    """Return the tensors of a file that may be updates of a network's layers; warns of the others. All, if none may be.

    Raises:
        UserError: An update is damaged.
    """
    updates, others = key_mapping.without_others(tensors, with_texts=with_texts)
    if updates and others:
        counts = other_tensors.describe(other_tensors.counts_of(others))
        logger.warning(f"{field}: left out of {source}: {counts}, such as {first_few(others)}")
    return updates or tensors


def header(source: str) -> dict[str, str]:
    """Return the metadata of a file's header, with the settings from peft's own file if peft wrote it; warns if that is missing."""
    path = Path(source).expanduser()
    if not hub.is_file_of(path, hub.SAFETENSORS) or not path.is_file():
        remedy = "check the path; name the file, not its folder"
        raise UserError("not a .safetensors file, or missing", code="lora-unreadable", remedy=remedy)
    try:
        with safe_open(path, "pt") as file:
            metadata, names = dict[str, str](file.metadata() or {}), [*file.keys()]
        lacks_scale = METADATA not in metadata and not any(name.endswith(".alpha") for name in names)
        settings_file = path.with_name(_PEFT[1])
        if path.name == _PEFT[0] and METADATA not in metadata and settings_file.is_file():
            metadata = metadata | {METADATA: user_files.read_text(settings_file, user_files.SETTINGS)}
        elif lacks_scale and any(name.startswith("base_model.model.") and ".lora_" in name for name in names):
            problem = f"{path.name} has peft's names and no scale, which is in its {_PEFT[1]}, read beside {_PEFT[0]}"
            logger.warning(f"{problem}: alpha / rank is taken as 1")
    except (OSError, SafetensorError, ValueError) as error:
        raise key_mapping.damaged(f"its header cannot be read: {error}") from error
    key_mapping.stored_settings(metadata.get(METADATA, "{}"))
    return metadata


def warn_of_base(source: str, here: Base) -> None:
    """Warn if a file names another base than this one; not if it names none."""
    metadata = header(source)
    with suppress(KeyError, TypeError, ValueError):  # it names none that is understood
        if (base := Base.from_json(metadata[BASE])).digest != here.digest:
            logger.warning(f"{source} was trained on {base}, and the base here is {here}")
