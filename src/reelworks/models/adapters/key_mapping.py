"""Map the tensors of an adapter's file to layers of the network, or to rows of layers."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from torch import Tensor

from reelworks.core.errors import UserError
from reelworks.models.adapters import other_tensors, text_encoders
from reelworks.models.adapters.adapter_types.adapter_type import AdapterType
from reelworks.models.adapters.adapter_types.registry import TYPES
from reelworks.models.adapters.config import LoraConfig
from reelworks.models.adapters.conventions import CONVENTIONS
from reelworks.models.adapters.release_layers import Layers, homes
from reelworks.models.family import FamilyConfig

METADATA = "lora_adapter_metadata"  # header key of diffusers' settings


def split_name(key: str, kind: AdapterType | None = None) -> tuple[str, str] | None:
    """Return the layer (as spelt in the file) and the kind of a tensor from its name in a file of an adapter type.

    Without a type it may be of any; None is returned if it is of none.
    """
    found = split_ending(key, kind)
    return None if found is None else (layer_of(found[0]), found[1])


def split_ending(key: str, kind: AdapterType | None = None) -> tuple[str, str] | None:
    """Return the same, but the layer with the prefix of its convention."""
    endings = {ending: name for each in ([kind] if kind else TYPES.values()) for ending, name in each.endings().items()}
    ending = next((ending for ending in endings if key.endswith(f".{ending}")), None)
    return None if ending is None else (key.removesuffix(f".{ending}"), endings[ending])


def type_of(kinds: Collection[str]) -> AdapterType | None:
    """Return the type that the kinds of a layer's tensors make a whole update of; None if they do not."""
    own = {*kinds} - {"alpha"}
    types = (kind for kind in TYPES.values() if own <= {*kind.endings().values()} and kind.is_whole(own))
    return next(types, None)


def is_part(kinds: Collection[str]) -> bool:
    """Whether the kinds of a layer's tensors are a part of an update, which is more than an alpha or magnitudes alone."""
    own = {*kinds} - {"alpha"}
    is_of_a_type = any(own <= {*kind.endings().values()} for kind in TYPES.values())
    return bool(own - {"magnitude_vector"}) and is_of_a_type and type_of(own) is None


def without_others(tensors: Mapping[str, Tensor], *, with_texts: bool = False) -> tuple[dict[str, Tensor], list[str]]:
    """Return the tensors of a file that may be updates of a network's layers, and the names of the others.

    Those of text encoders are others, unless they are asked for. Those of a layer's update stay together, also if they are
    none that is read here.
    """
    found = {key: target for key in tensors if (target := split_ending(key)) is not None}
    kinds: dict[str, set[str]] = defaultdict(set)
    for stem, kind in found.values():
        kinds[stem].add(kind)

    def is_other(key: str) -> bool:
        if key not in found:
            return other_tensors.layer_of(key, kinds) is None
        stem = found[key][0]
        is_of_text = text_encoders.part_of(stem) is not None and not with_texts
        return is_of_text or kinds[stem] == {"alpha"} or is_part(kinds[stem])

    others = [key for key in tensors if is_other(key)]
    return {key: value for key, value in tensors.items() if key not in {*others}}, others


def layer_of(stem: str) -> str:
    """Return the layer that the names of tensors begin with, without the prefix of its convention."""
    prefixes = (prefix for convention in CONVENTIONS.values() for prefix in convention.prefixes)
    return next((stem.removeprefix(p) for p in prefixes if stem.startswith(p)), stem)


def place_tensors(
    tensors: Mapping[str, Tensor],
    layers: Iterable[str],
    config: LoraConfig,
    family: FamilyConfig | None,
    metadata: Mapping[str, str],
) -> tuple[Layers, list[str]]:
    """Return the tensors of a file by layer of the network that has an adapter, and the names that belong to none."""
    kind, targets, settings = TYPES[config.type], homes(layers, family), settings_of(metadata)
    kind.require_readable(settings)
    stored: Layers = defaultdict(dict)
    unknown, result = [], Layers()
    for key, value in tensors.items():
        found = split_name(key, kind)
        if found is None or found[0] not in targets:
            unknown.append(key)
        else:
            stored[found[0]][found[1]] = value
    for spelling, kinds in stored.items():
        if not kinds.keys() >= kind.required:
            unknown += [f"{spelling} ({each})" for each in kinds]
            continue
        parts = kind.split_layer(_rescale(kinds, settings, config), targets[spelling], config.rank)
        unknown += [spelling] * (not parts)
        result |= parts
    return result, unknown


def multiply(kind: AdapterType, kinds: Mapping[str, Tensor], factor: float) -> dict[str, Tensor]:
    """Return an update multiplied by a factor: exact for powers of two, else rounded once, in float32."""
    if math.isclose(factor, 1, rel_tol=1e-6):  # files store alphas in 32 bits
        return dict(kinds)
    name = next(name for name in kind.multiplied if name in kinds)
    return {**kinds, name: kinds[name].float() * factor}


def _rescale(kinds: Mapping[str, Tensor], settings: Mapping[str, Any], config: LoraConfig) -> dict[str, Tensor]:
    """Return a stored update, without alpha, as its numbers are in an adapter of the config's alpha and rank."""
    kind = TYPES[config.type]
    own = config.exact_alpha / config.rank if kind.rank_of(kinds) else 1.0
    values = {name: value for name, value in kinds.items() if name != "alpha"}
    return multiply(kind, values, stored_scale(kind, kinds, settings) / own)


def stored_scale(kind: AdapterType, kinds: Mapping[str, Tensor], settings: Mapping[str, Any], layer: str = "") -> float:
    """Return the number that a stored update is multiplied by: alpha / rank, or 1 without an alpha.

    Alpha is beside the tensors or in peft's settings, which may have one for each layer. Nor has a LoKr of two full factors
    a scale, except in files of peft.
    """
    rank, alpha = kind.rank_of(kinds), settings.get("lora_alpha", settings.get("alpha"))
    if "alpha" in kinds:
        return float(kinds["alpha"]) / rank if rank else 1.0
    alphas = settings.get("alpha_pattern") or {}
    alpha = next((value for name, value in alphas.items() if _is_named(layer, name)), alpha)
    if alpha is None:
        return 1.0
    divisor = rank or settings["r"]
    return float(alpha / (math.sqrt(divisor) if settings.get("use_rslora") else divisor))


def _is_named(layer: str, pattern: str) -> bool:
    """Whether a layer is meant by a key of peft's `alpha_pattern`, a name or its end; patterns proper are refused."""
    name = pattern.removeprefix("^")
    if not re.fullmatch(r"[\w.-]+", name):
        raise UserError(
            f"its header has alphas for layers by a pattern, {pattern!r}, and only names are read",
            code="lora-unreadable",
            remedy="name another file",
        )
    return layer == name or (name == pattern and layer.endswith(f".{name}"))


def settings_of(metadata: Mapping[str, str], has_part: Callable[[str], bool] = lambda _: True) -> dict[str, Any]:
    """Return peft's settings in a header, without the part of the pipeline before their names; of all parts, or of some."""
    settings = json.loads(metadata.get(METADATA, "{}"))
    parts = {key: key.rpartition(".") for key in settings}
    return {name: settings[key] for key, (part, _, name) in parts.items() if has_part(part)}
