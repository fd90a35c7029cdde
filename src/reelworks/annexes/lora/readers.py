"""Count the layers of a file that other programs take, and draw as they were trained, by how they map names to layers.

diffusers is asked itself. The rules of the others are those of their sources: ComfyUI's `comfy/lora.py` and `weight_adapter/`
(July 2026), Forge's `backend/patcher/lora.py` with its `packages_3rdparty` (dfdcbab), Forge Neo's `modules_forge/packages/comfy/`
(0cc5e9e), `networks/` of sd-scripts (48d368f) and of musubi-tuner (30c658c), LyCORIS's `create_lycoris_from_weights` (f49d30d), and
peft's `PeftModel.from_pretrained`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from reelworks.annexes.lora.adapter_file import AdapterFile
from reelworks.annexes.lora.base_network import BaseNetwork
from reelworks.annexes.lora.contents import StoredLayer
from reelworks.core import optional_imports, toml
from reelworks.models import identify, registry
from reelworks.models.adapters import text_encoders
from reelworks.models.adapters.adapter_types.registry import LORA

_KNOWN = toml.beside(__file__, "readers.toml")  # by the classes of networks
_COMFYUI, _FORGE_NEO, _FORGE = (_KNOWN[program] for program in ("comfyui", "forge_neo", "forge"))
_SD_SCRIPTS, _MUSUBI = (
    {network: re.compile(layers) for network, layers in _KNOWN[program].items()} for program in ("sd_scripts", "musubi")
)
_ADDED = ("lora", "loha", "lokr")  # types that ComfyUI, Forge and LyCORIS know in these files


def readers_of(file: AdapterFile, network: BaseNetwork | None) -> dict[str, int]:
    """Return the number of layers that each program takes and draws as they were trained, most first; none that takes none.

    Layers that are none of the network's are taken by no program; without a network, only those of text encoders are.
    """
    layers = [_Layer(file, layer, network) for layer in file.layers]
    by_diffusers = _of_diffusers(file, network)
    counts = {name: sum(takes(layer) for layer in layers) for name, takes in _PROGRAMS.items()}
    counts["diffusers"] = sum(_has_all(layer, by_diffusers) for layer in layers)
    if counts["diffusers"]:
        del counts["diffusers (load_lora_adapter)"]  # its pipelines are what is used
    return {name: count for name, count in sorted(counts.items(), key=lambda pair: -pair[1]) if count}


@dataclass(frozen=True)
class _Layer:
    """A layer of a file, beside the network that the file belongs to."""

    file: AdapterFile
    stored: StoredLayer
    network: BaseNetwork | None

    @property
    def network_class(self) -> str:
        """The class of the network; empty for an unknown one."""
        return "" if self.network is None else self.network.config.network.name

    @cached_property
    def own(self) -> tuple[str, ...]:
        """The layers of diffusers that it is, in the order of their rows; empty if it is none of the network."""
        found = [] if self.network is None else self.network.targets_of(self.stored.name)
        return tuple(target.layer for target in found) if self.stored.text_encoder is None else ()

    @property
    def part(self) -> str:
        """The one layer of diffusers that it is; empty if it is several, or none."""
        return self.own[0] if len(self.own) == 1 else ""

    @property
    def is_flat(self) -> bool:
        """Whether it is a LoRA of a convolution without its kernel, which programs that build the layer cannot load."""
        return (
            self.stored.type is LORA
            and self.network is not None
            and any(self.network.kernel_of(own) != self.stored.kernel for own in self.own)
        )

    def is_one_of(self, names: str) -> bool:
        """Whether a pattern means a layer of diffusers that it is."""
        return any(re.fullmatch(names, layer) for layer in self.own)

    @property
    def released(self) -> str:
        """The layer of the release that it is, or is a part of."""
        return self.network.place_of(self.own[0]).layer if self.network is not None and self.own else ""

    def is_named(self, prefix: str, layer: str) -> bool:
        """Whether its name is that of a layer behind a prefix; a name behind "_" has underscores for dots."""
        return bool(layer) and self.stored.stem == prefix + (layer.replace(".", "_") if prefix.endswith("_") else layer)

    def has(self, *types: str, ends: str | tuple[str, ...] = "") -> bool:
        """Whether it is of one of some types; a LoRA with one of its matrices named so, and without magnitudes."""
        kind = self.stored.type
        is_plain = "magnitude_vector" not in self.stored.keys
        return kind.name in types and is_plain and (kind is not LORA or self.stored.keys["A"].endswith(ends))

    @cached_property
    def is_scaled_by_header(self) -> bool:
        """Whether it has another scale than 1, which only the header tells."""
        return "alpha" not in self.stored.keys and self.file.scale_in_header(self.stored) != 1


def _by_map(known: Mapping[str, Sequence[str]], ends: str | tuple[str, ...] = "") -> Callable[[_Layer], bool]:
    """Return whether a program takes a layer whose map has names of the release, and some of diffusers."""

    def takes(layer: _Layer) -> bool:
        if not layer.has(*_ADDED, ends=ends) or layer.is_scaled_by_header:
            return False
        if layer.stored.text_encoder is not None:
            return (layer.network is None or layer.network_class in known) and _is_text_of_map(
                layer, known is not _FORGE
            )
        return layer.network_class in known and _is_in_map(layer, known[layer.network_class])

    return takes


def _is_in_map(layer: _Layer, prefixes: Sequence[str]) -> bool:
    """Whether a map has a layer's name: that of the release, or that of diffusers behind one of some prefixes."""
    own = [(gap, names) for network, gap, names in _KNOWN["gaps"] if network == layer.network_class]
    gaps = {prefix for gap, names in own if layer.is_one_of(names) for prefix in gap}
    released = {"diffusion_model.", "lora_unet_", *([""] if layer.network_class in _KNOWN["bare"] else [])}
    names = [*((each, layer.part) for each in prefixes), *((each, layer.released) for each in released)]
    return any(layer.is_named(prefix, name) for prefix, name in names if prefix not in gaps)


def _is_text_of_map(layer: _Layer, knows_own: bool) -> bool:
    """Whether a map has the name of a text encoder's layer: kohya's, diffusers' of CLIP, and ComfyUI's if it is its own."""
    stem = layer.stored.stem
    is_named = not text_encoders.is_named_by_diffusers(stem) or text_encoders.in_diffusers(stem) is not None
    return (
        layer.network_class in _KNOWN["with_texts"]
        and is_named
        and (knows_own or not text_encoders.is_named_by_comfyui(stem))
    )


def _by_module(known: Mapping[str, re.Pattern[str]], *types: str) -> Callable[[_Layer], bool]:
    """Return whether a network of kohya's scripts takes a layer, which has the name of a module of theirs."""

    def takes(layer: _Layer) -> bool:
        if not layer.has(*types, ends="lora_down.weight") or layer.is_scaled_by_header or layer.is_flat:
            return False
        if layer.stored.text_encoder is not None:
            return (
                known is _SD_SCRIPTS and layer.network_class in _KNOWN["with_texts"] and _is_text_of_sd_scripts(layer)
            )
        names = "" if layer.network is None else layer.network.config.network.lora.kohya
        name = layer.part if names == "diffusers" or layer.network_class in _KNOWN["of_diffusers"] else layer.released
        return (
            layer.network_class in known
            and known[layer.network_class].fullmatch(name) is not None
            and layer.is_named("lora_unet_", name)
        )

    return takes


def _is_text_of_sd_scripts(layer: _Layer) -> bool:
    """Whether a text encoder's layer has the one name that it has there, which depends on the model."""
    is_only = None if layer.network is None else layer.network.has_one_text_encoder
    return text_encoders.in_kohya(layer.stored.stem, is_only=is_only) == layer.stored.stem


def _by_lycoris(layer: _Layer) -> bool:
    """Whether LyCORIS takes a layer of diffusers' network: with its own names, and DoRAs of rows as well."""
    is_known = layer.stored.type.name in _ADDED and all("lora_A" not in key for key in layer.stored.keys.values())
    return is_known and not layer.is_flat and not layer.is_scaled_by_header and layer.is_named("lycoris_", layer.part)


def _has_names_of_peft(layer: _Layer, prefix: str) -> bool:
    """Whether the tensors of a layer of diffusers have peft's names behind a prefix."""
    ends = {*layer.stored.type.tensors.values(), "lora_magnitude_vector.weight"}
    is_own = all(key.removeprefix(f"{layer.stored.stem}.") in ends for key in layer.stored.keys.values())
    return is_own and layer.is_named(prefix, layer.part) and not layer.is_flat


def _has_names_of_part(layer: _Layer) -> bool:
    """Whether they are so behind the part of the network in its pipeline."""
    return layer.network is not None and _has_names_of_peft(layer, f"{layer.network.part}.")


def _by_peft(layer: _Layer) -> bool:
    """Whether peft takes a layer of diffusers' network, by the settings in its own file or in the header."""
    return layer.file.has_settings and _has_names_of_peft(layer, "base_model.model.")


def _by_injection(layer: _Layer) -> bool:
    """Whether peft takes a layer of a file for diffusers, without the part of the pipeline before its name."""
    return layer.file.has_settings and _has_names_of_part(layer)


def _by_adapter(layer: _Layer) -> bool:
    """Whether diffusers takes a layer with `load_lora_adapter` of the network, by its names and the part before them."""
    is_known = layer.network is not None and _pipeline_of(layer.network) is not None
    return is_known and layer.stored.type.name in ("lora", "lokr") and _has_names_of_part(layer)


_PROGRAMS: Mapping[str, Callable[[_Layer], bool]] = {
    "diffusers": lambda _: False,  # in its place among the others; see `_of_diffusers`
    "diffusers (load_lora_adapter)": _by_adapter,
    "peft": _by_peft,
    "peft (inject_adapter_in_model)": _by_injection,
    "sd-scripts": _by_module(_SD_SCRIPTS, "lora"),
    "sd-scripts with LyCORIS": _by_module(_SD_SCRIPTS, "loha", "lokr"),
    "musubi-tuner": _by_module(_MUSUBI, "lora", "loha", "lokr"),
    "Forge": _by_map(
        _FORGE, ("lora_down.weight", "lora_A.weight", "lora.down.weight", "lora_linear_layer.down.weight")
    ),
    "Forge Neo": _by_map(_FORGE_NEO),
    "ComfyUI": _by_map(_COMFYUI),
    "LyCORIS": _by_lycoris,
}


def _has_all(layer: _Layer, taken: set[str]) -> bool:
    """Whether all parts of a LoRA are among the layers and kinds that diffusers takes."""
    if layer.stored.type is not LORA or layer.is_flat:
        return False
    if layer.stored.text_encoder is not None:
        name = text_encoders.in_diffusers(layer.stored.stem)
        is_own = layer.network is None and name == layer.stored.stem and layer.has("lora", ends="lora_A.weight")
        return is_own or (layer.has("lora") and f"{name}.A" in taken)
    part = "" if layer.network is None else f"{layer.network.part}."
    kinds = ("A", "B", "magnitude_vector") if "magnitude_vector" in layer.stored.keys else ("A", "B")
    return bool(layer.own) and all(f"{part}{own}.{kind}" in taken for own in layer.own for kind in kinds)


def _of_diffusers(file: AdapterFile, network: BaseNetwork | None) -> set[str]:
    """Return the layers and kinds that diffusers' pipeline takes of a file's LoRAs."""
    name = None if network is None else _pipeline_of(network)
    if network is None or name is None or not any(layer.type is LORA for layer in file.layers):
        return set()
    keys = {layer.keys.get("alpha") for layer in file.layers}
    alphas = {None if key is None else str(file.read_other(key).float().tolist()) for key in keys}
    # It gives those without an alpha that of others, and in a UNet also those that others are named like.
    if len(alphas) > 1 and (network.part == "unet" or (file.names.is_peft and None in alphas)):
        return set()
    tensors = {
        key: torch.ones(()) if key.endswith(".alpha") else torch.zeros(shape, dtype=torch.bfloat16)
        for key, (_, shape) in file.facts.items()
    }
    logger = logging.getLogger("diffusers")
    level = logger.level
    try:
        logger.setLevel(logging.CRITICAL)
        names = _converted_by_diffusers(tensors, name, network)
    except Exception:  # what a pipeline does not know, it refuses with errors of any kind
        return set()
    finally:
        logger.setLevel(level)
    ends = [(kind, f".{end}") for kind, end in LORA.tensors.items()]
    return {f"{key.removesuffix(end)}.{kind}" for key in names for kind, end in ends if key.endswith(end)}


def _converted_by_diffusers(tensors: dict[str, Tensor], pipeline: str, network: BaseNetwork) -> list[str]:
    """Return the names in peft's form that a pipeline's own code makes of a file; none if it refuses them."""
    more = {"unet_config": identify.network(network.names[0]).config} if network.part == "unet" else {}
    found = optional_imports.from_diffusers(pipeline).lora_state_dict(tensors, **more)
    state = found[0] if isinstance(found, tuple) else found
    if not all("lora" in key for key in state):
        return []
    utils = optional_imports.diffusers().utils
    texts = {key: value for key, value in state.items() if key.startswith("text_encoder")}
    state = {key: value for key, value in state.items() if key not in texts}
    if not any("lora_A" in key for key in state):
        state = utils.convert_unet_state_dict_to_peft(state)
    if texts:
        texts = utils.convert_state_dict_to_peft(utils.convert_state_dict_to_diffusers(texts))
    return [*state, *texts]


def _pipeline_of(network: BaseNetwork) -> str | None:
    """Return the class of the network's pipeline in diffusers; None for a network that is not there."""
    texts = registry.text_encoders_of(network.names[0])
    return texts.pipeline or None if texts is not None else None
