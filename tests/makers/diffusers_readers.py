"""Files of random adapters, read into a network by the code of diffusers and peft, and what is wrong with its weights then."""

from __future__ import annotations

import inspect
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import diffusers
import peft
import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from reelworks.models import registry
from reelworks.models.adapters import inject
from reelworks.models.adapters.config import LoraConfig
from reelworks.models.adapters.conventions import LoraFormat
from reelworks.models.export.lora import LoraFile
from reelworks.testing import contract

NOT_TAKEN = "nothing of the file is taken"
_TOLERANCE = 1e-6  # of the norm of a layer's merged weights
Weights = Mapping[str, Tensor]


def written(chance: random.Random, name: str, config: LoraConfig, format: LoraFormat, path: Path) -> Weights:
    """Write the file of a random adapter and return the weights that it was trained to."""
    denoiser = contract.build(name)
    inject.inject(denoiser, config, seed=0)
    generator = torch.Generator().manual_seed(chance.randrange(2**32))
    with torch.no_grad():
        for value in inject.weights(denoiser.module).values():
            value.add_(torch.randn(value.shape, generator=generator), alpha=0.3)
    part = registry.PRESETS[name].config.network.part
    file = LoraFile(format, config.adapter, name, part).content(inject.weights(denoiser.module))
    save_file({key: value.contiguous() for key, value in file.tensors.items()}, path, file.header)
    return inject.merge(denoiser.module)


def through_adapter(module: Any, path: Path, part: str) -> None:
    """Load with `load_lora_adapter`: a folder and a name, or the path of the file."""
    module.load_lora_adapter(str(path.parent), weight_name=path.name, prefix=part)


def through_path(module: Any, path: Path, part: str) -> None:
    """Load with `load_lora_adapter` and the path of the file, of which it does not read the header."""
    module.load_lora_adapter(str(path), prefix=part)


def through_pipeline(name: str, module: nn.Module, path: Path, part: str) -> None:
    """Load with `load_lora_weights` of the family's pipeline, which has no other component."""
    preset = registry.PRESETS[name]
    kind = getattr(diffusers, registry.family_of(name).text_encoders[preset.parts.text].pipeline)
    asked = list(inspect.signature(kind.__init__).parameters.values())[1:]
    given = {one.name: None if one.default is inspect.Parameter.empty else one.default for one in asked}
    kind(**given | {part: module}).load_lora_weights(str(path.parent), weight_name=path.name)


def through_peft(module: nn.Module, path: Path, part: str) -> None:
    """Load with peft alone, by the settings of the header."""
    with safe_open(path, "pt") as file:
        tensors = {key.removeprefix(f"{part}."): file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        header = json.loads(file.metadata()["lora_adapter_metadata"])
    settings = {key.removeprefix(f"{part}."): value for key, value in header.items()}
    kinds = {"LOHA": peft.LoHaConfig, "LOKR": peft.LoKrConfig, "OFT": peft.OFTConfig, "LORA": peft.LoraConfig}
    peft.inject_adapter_in_model(kinds[settings.pop("peft_type", "LORA")](**settings), module)
    if unexpected := peft.set_peft_model_state_dict(module, tensors).unexpected_keys:
        raise ValueError(f"unexpected: {unexpected[:3]}")


@torch.no_grad()
def merged(module: nn.Module) -> Weights:
    """Return the weights of a network into which another program loaded a file."""
    for child in list(module.modules()):
        if isinstance(child, BaseTunerLayer):
            child.merge()
    return {key.replace(".base_layer.", "."): value for key, value in module.state_dict().items()}


def wrong(found: Weights, wanted: Weights, base: Weights) -> str | None:
    """Return the first layer whose weights are others than what was trained."""
    changed = [key for key, value in wanted.items() if not torch.equal(value, base[key])]
    if all(torch.equal(found[key], base[key]) for key in changed):
        return NOT_TAKEN
    far = [key for key, value in wanted.items() if (found[key] - value).norm() > _TOLERANCE * value.norm()]
    return f"{len(far)} of {len(changed)} layers are others, such as {far[0]}" if far else None


def misread(reader: Callable[[str, nn.Module, Path, str], None], name: str, path: Path, wanted: Weights) -> str | None:
    """Return what is wrong with the weights of a network into which a reader loaded a file."""
    module = contract.build(name).module
    base = {key: value.clone() for key, value in module.state_dict().items()}
    try:
        reader(name, module, path, registry.PRESETS[name].config.network.part)
    except Exception as error:
        return f"{NOT_TAKEN}: {type(error).__name__}: {error}"
    return wrong(merged(module), wanted, base)
