"""LoRA files: written in the conventions of diffusers, ComfyUI and kohya, and read in any of them.

All three hold the same two matrices for each layer; they differ in names, and in where alpha stands.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from reelworks.core.errors import UserError
from reelworks.models import weight_files
from reelworks.models.lora import inject
from reelworks.models.lora.config import LoraConfig

Format = Literal["diffusers", "comfyui", "kohya"]
_METADATA = "lora_adapter_metadata"  # where diffusers looks for settings
_SHOWN = 3
_OTHER_RULES = (
    "use_rslora",
    "alpha_pattern",
    "rank_pattern",
)  # settings by which alpha / rank is not the scale
_PREFIXES = ("transformer.", "unet.", "diffusion_model.", "lora_unet_")
_ENDINGS = {
    "A": (".lora_A.weight", ".lora_down.weight"),
    "B": (".lora_B.weight", ".lora_up.weight"),
    "magnitude_vector": (".lora_magnitude_vector", ".dora_scale"),
    "alpha": (".alpha",),
}


class File(NamedTuple):
    """What is to be written.

    Attributes:
        tensors: By their names in the file; alphas are float32.
        header: Texts beside them.
    """

    tensors: dict[str, Tensor]
    header: dict[str, str]


def to_file(
    state: Mapping[str, Tensor], format: Format, *, alpha: float, part: str = "transformer", model: str = ""
) -> File:
    """Give a LoRA the names of a convention.

    Args:
        state: Its tensors by their names in the network (`inject.weights`).
        format: Whose convention.
        alpha: The update counts alpha / rank.
        part: Folder of the network in a pipeline of diffusers.
        model: Name of the base, for the header.
    """
    tensors: dict[str, Tensor] = {}
    layers: dict[str, int] = {}
    for key, (layer, kind) in inject.parts(state).items():
        value = state[key]
        if kind == "A":
            layers[layer] = value.shape[0]
        if kind == "magnitude_vector" and format != "diffusers":
            value = value[:, None]  # as wide as the weight
        tensors[_stem(layer, format, part) + _ENDINGS[kind][_spelling(kind, format)]] = value
    if format != "diffusers":
        tensors |= {f"{_stem(layer, format, part)}.alpha": torch.tensor(alpha) for layer in layers}
    (rank,) = set(layers.values())
    header = {
        "modelspec.sai_model_spec": "1.0.0",
        "modelspec.architecture": f"{model}/lora",
        "modelspec.implementation": "diffusers",
        "ss_network_module": "networks.lora",
        "ss_network_dim": str(rank),
        "ss_network_alpha": str(alpha),
    }
    if format == "diffusers":
        dora = any(kind == "magnitude_vector" for _, kind in inject.parts(state).values())
        settings = {"r": rank, "lora_alpha": alpha, "target_modules": sorted(layers), "use_dora": dora}
        header[_METADATA] = json.dumps({f"{part}.{key}": value for key, value in settings.items()})
    return File(tensors, header)


def _stem(layer: str, format: Format, part: str) -> str:
    if format == "kohya":
        return "lora_unet_" + layer.replace(".", "_")
    return f"{part}.{layer}" if format == "diffusers" else f"diffusion_model.{layer}"


def _spelling(kind: str, format: Format) -> int:
    return int(format == "kohya" or (format == "comfyui" and kind == "magnitude_vector"))


@torch.no_grad()
def load_into(module: nn.Module, config: LoraConfig) -> None:
    """Load the file `config.weights` into a network with low-rank layers, exactly.

    Raises:
        UserError: It cannot be read, is of another base, or has another rank, alpha or other layers; nothing is
            loaded then.
    """
    assert config.weights is not None
    header = _header(config.weights)
    read = weight_files.read(config.weights, field="lora.weights")
    own = {
        where: parameter
        for key, parameter in module.named_parameters()
        for where in inject.parts([key]).values()
    }
    found, strange = _placed(read, {layer for layer, _ in own})
    given = {where: value for where, value in found.items() if where[1] != "alpha"}
    _require_rank_and_alpha(config, found, header)
    misshapen = [w for w in given.keys() & own.keys() if given[w].shape != own[w].shape]
    strange += [f"{layer} ({part})" for layer, part in (*misshapen, *(given.keys() - own.keys()))]
    missing = own.keys() - given.keys()
    if strange or missing:
        shown = ", ".join(sorted(strange or [f"{layer} ({part})" for layer, part in missing])[:_SHOWN])
        raise UserError(
            f"a LoRA of another base or of other layers: {len(strange)} of its {len(read)} tensors fit no layer that "
            f"is adapted here, and {len(missing)} of {len(own)} here are not in it, such as {shown}",
            field="lora.weights",
            value=config.weights,
            remedy="name a LoRA of this model, and set lora.targets and lora.dora as it was trained with",
        )
    for where, parameter in own.items():
        parameter.copy_(given[where])


def _placed(
    read: Mapping[str, Tensor], layers: Iterable[str]
) -> tuple[dict[tuple[str, str], Tensor], list[str]]:
    """Find the layer and the part that each tensor of a file means; also the names that mean none."""
    names = {name: layer for layer in layers for name in (layer, layer.replace(".", "_"))}
    endings = {ending: part for part, spellings in _ENDINGS.items() for ending in spellings}
    found, strange = {}, []
    for key, value in read.items():
        ending = next((ending for ending in endings if key.endswith(ending)), None)
        stem = key.removesuffix(ending or "")
        stem = next((stem.removeprefix(p) for p in _PREFIXES if stem.startswith(p)), stem)
        if ending is None or stem not in names:
            strange.append(key)
        else:
            part = endings[ending]
            found[names[stem], part] = value.flatten() if part == "magnitude_vector" else value
    return found, strange


def _require_rank_and_alpha(
    config: LoraConfig, found: Mapping[tuple[str, str], Tensor], header: Mapping[str, str]
) -> None:
    """Refuse a file whose updates would count another share here."""
    ranks = Counter(value.shape[0] for (_, part), value in found.items() if part == "A")
    if not ranks:
        return  # of another base, which is told then
    rank = ranks.most_common(1)[0][0]
    alphas = {float(value) for (_, part), value in found.items() if part == "alpha"} or {
        _told_alpha(header, rank)
    }
    for name, asked, there in (("rank", config.rank, set(ranks)), ("alpha", config.exact_alpha, alphas)):
        # Files hold alphas as numbers of 32 bits or less.
        if not all(math.isclose(value, asked, rel_tol=1e-5) for value in there):
            shown = ", ".join(f"{value:g}" for value in sorted(there))
            raise UserError(
                f"the LoRA that it begins with has {name} {shown}",
                field=f"lora.{name}",
                value=asked,
                remedy=f"set it to {shown}"
                if len(there) == 1
                else "name another file: one value serves all layers",
            )


def _told_alpha(header: Mapping[str, str], rank: int) -> float:
    """Alpha as a header tells it; where nothing does, updates count once."""
    settings = {
        key.rpartition(".")[2]: value for key, value in json.loads(header.get(_METADATA, "{}")).items()
    }
    return float(settings.get("lora_alpha", header.get("ss_network_alpha", rank)))


def _header(source: str) -> dict[str, str]:
    """Texts of a file's header.

    Raises:
        UserError: It is no file, cannot be read, or its updates count by a rule that is not ours.
    """
    path = Path(source).expanduser()
    problem, remedy = "not a .safetensors file that is there", "check the path; name the file, not its folder"
    if path.suffix == ".safetensors" and path.is_file():
        try:
            with safe_open(path, "pt") as file:
                header: dict[str, str] = file.metadata() or {}
            settings = json.loads(header.get(_METADATA, "{}"))
        except (OSError, SafetensorError, ValueError) as error:
            problem, remedy = f"its header cannot be read: {error}", "download or export it again"
        else:
            rules = [key for key, value in settings.items() if value and key.endswith(_OTHER_RULES)]
            if not rules:
                return header
            problem, remedy = f"its header has {rules[0]}, which is not supported", "name another file"
    raise UserError(problem, field="lora.weights", value=source, remedy=remedy)
