"""Map the tensors of a LoRA file to layers of the network, or to rows of layers."""

from __future__ import annotations

import functools
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from reelworks.models.family import FamilyConfig, KeyRule
from reelworks.models.lora.config import LoraConfig

METADATA = "lora_adapter_metadata"  # header key of diffusers' settings


class Place(NamedTuple):
    """The place of a layer of diffusers in a release."""

    layer: str  # of the release
    part: int = 0  # index among the layer's parts, from the top row
    heights: tuple[int, ...] = (1,)  # relative numbers of rows of the parts
    swapped: bool = False  # whether the two halves of its rows are in the other order


_Patterns = list[tuple[re.Pattern[str], Place]]


def place(config: FamilyConfig | None, layer: str) -> Place:
    """Return the place of a layer in its family's release: the layer itself without a family or a rule for it."""
    return _place(_patterns_of(config), layer)


def _place(patterns: _Patterns, layer: str) -> Place:
    for pattern, target in patterns:
        if match := pattern.fullmatch(layer):
            return target._replace(layer=match.expand(target.layer))
    return Place(layer)


def _patterns_of(config: FamilyConfig | None) -> _Patterns:
    return [] if config is None else _patterns(config.network.release_layers)


@functools.cache
def _patterns(rules: tuple[KeyRule, ...]) -> _Patterns:
    patterns = []
    for parts, release, heights, swapped in rules:
        layer = release.replace(".N.", r".\1.").replace(".*", r".\1")
        names = parts.split()
        for i, name in enumerate(names):
            escaped = re.escape(name).replace(r"\.N\.", r"\.(\d+)\.").replace(r"\.\*", r"\.(.+)")
            patterns.append((re.compile(escaped), Place(layer, i, heights or (1,) * len(names), swapped)))
    return patterns


_PREFIXES = (
    "base_model.model.",
    "transformer.",
    "unet.",
    "diffusion_model.",
    "lora_unet_",
    "lora_transformer_",
    "lycoris_",
)
_ENDINGS = {
    ".lora_A.weight": "A",
    ".lora_down.weight": "A",
    ".lora_B.weight": "B",
    ".lora_up.weight": "B",
    ".lora_magnitude_vector": "magnitude_vector",
    ".dora_scale": "magnitude_vector",
    ".alpha": "alpha",
}
Layers = dict[str, dict[str, Tensor]]
"""Tensors of each layer by kind, such as A and B."""


class TargetLayer(NamedTuple):
    """A layer of the network that is stored in a layer of a file or in a part of it."""

    layer: str
    place: Place


LYCORIS_ENDINGS = {
    ".oft_R.weight": "oft_R",
    ".alpha": "alpha",
    **{f".hada_{part}": f"hada_{part}" for part in ("w1_a", "w1_b", "w2_a", "w2_b")},
    **{f".lokr_{part}": f"lokr_{part}" for part in ("w1", "w1_a", "w1_b", "w2", "w2_a", "w2_b")},
}
"""Kinds of a LoKr's, LoHa's or OFT's tensors by the ends of their names."""


def split(key: str, endings: Mapping[str, str] = _ENDINGS) -> tuple[str, str] | None:
    """Return the layer (as spelt in the file) and the kind of a tensor from its name in a file; None if unknown."""
    ending = next((ending for ending in endings if key.endswith(ending)), None)
    if ending is None:
        return None
    stem = key.removesuffix(ending)
    return next((stem.removeprefix(p) for p in _PREFIXES if stem.startswith(p)), stem), endings[ending]


def homes(layers: Iterable[str], family: FamilyConfig | None) -> dict[str, list[TargetLayer]]:
    """Return the network's layers that each layer name in a file may hold, in the order of their rows."""
    names: dict[str, dict[TargetLayer, None]] = defaultdict(dict)
    patterns = _patterns_of(family)
    for layer in layers:
        for placed_at in (Place(layer), _place(patterns, layer)):
            for spelling in (placed_at.layer, placed_at.layer.replace(".", "_")):
                names[spelling][TargetLayer(layer, placed_at)] = None
    return {name: sorted(targets, key=lambda target: target.place.part) for name, targets in names.items()}


def placed(
    tensors: Mapping[str, Tensor],
    layers: Iterable[str],
    config: LoraConfig,
    family: FamilyConfig | None,
    metadata: Mapping[str, str],
) -> tuple[Layers, list[str]]:
    """Return the tensors of a file by layer of the network that has a LoRA, and the names that belong to none."""
    targets = homes(layers, family)
    stored, unknown = by_layer(tensors, targets, _ENDINGS)
    settings = settings_of(metadata)
    result: Layers = {}
    for spelling, kinds in stored.items():
        if not kinds.keys() >= {"A", "B"}:
            unknown += [f"{spelling} ({kind})" for kind in kinds]
            continue
        parts = parted(rescaled(kinds, settings, config), targets[spelling], config.rank)
        unknown += [spelling] * (not parts)
        result |= parts
    return result, unknown


def by_layer(
    tensors: Mapping[str, Tensor], layers: Mapping[str, object], endings: Mapping[str, str]
) -> tuple[Layers, list[str]]:
    """Return the tensors of a file by layer (as spelt in the file) and kind, and the names that belong to no layer."""
    stored: Layers = defaultdict(dict)
    unknown = []
    for key, value in tensors.items():
        target = split(key, endings)
        if target is None or target[0] not in layers:
            unknown.append(key)
        else:
            stored[target[0]][target[1]] = value
    return stored, unknown


def rank_of(kinds: Mapping[str, Tensor]) -> int | None:
    """Return the rank of a layer's update; None if it has none, and so no scale."""
    return next((kinds[k].shape[0] for k in ("A", "hada_w1_b", "lokr_w2_b", "lokr_w1_b") if k in kinds), None)


# The tensor of a LoRA, LoHa or LoKr by which its whole update is multiplied.
_MULTIPLIED = ("B", "hada_w1_a", "lokr_w1", "lokr_w1_a")


def scaled(kinds: Mapping[str, Tensor], factor: float) -> dict[str, Tensor]:
    """Return an update multiplied by a factor: exact for powers of two, else rounded once, in float32."""
    if math.isclose(factor, 1, rel_tol=1e-6):  # files store alphas in 32 bits
        return dict(kinds)
    name = next(name for name in _MULTIPLIED if name in kinds)
    return {**kinds, name: kinds[name].float() * factor}


def rescaled(kinds: Mapping[str, Tensor], settings: Mapping[str, Any], config: LoraConfig) -> dict[str, Tensor]:
    """Return a stored update, without alpha, as its numbers are in an adapter of the config's alpha and rank.

    The scale is alpha / rank, with alpha beside the tensors or in peft's settings, and 1 without one. Nor has a LoKr of
    two full factors one, except in files of peft.
    """
    rank, alpha = rank_of(kinds), settings.get("lora_alpha", settings.get("alpha"))
    scale, own = 1.0, config.exact_alpha / config.rank if rank else 1.0
    if "alpha" in kinds:
        scale = float(kinds["alpha"]) / rank if rank else 1.0
    elif alpha is not None:
        divisor = rank or settings["r"]
        scale = alpha / (math.sqrt(divisor) if settings.get("use_rslora") else divisor)
    return scaled({kind: value for kind, value in kinds.items() if kind != "alpha"}, scale / own)


def settings_of(metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return peft's settings in a header, without the part of the pipeline before their names."""
    return {key.rpartition(".")[2]: value for key, value in json.loads(metadata.get(METADATA, "{}")).items()}


def parted(kinds: dict[str, Tensor], targets: list[TargetLayer], rank: int) -> Layers:
    """Split one stored layer into the target layers. Empty if some rows belong to layers without an adapter."""
    place = targets[0].place
    values = {k: v.flatten() if k == "magnitude_vector" else v for k, v in kinds.items()}
    if place.heights == (1,):
        if place.swapped:
            values |= {k: swapped_halves(v) for k, v in values.items() if k in ("B", "magnitude_vector")}
        return {targets[0].layer: values}
    A, B, stored_rank = values["A"], values["B"], values["A"].shape[0]
    heights = [B.shape[0] * height // sum(place.heights) for height in place.heights]
    rows = {target.layer: torch.split(B, heights)[target.place.part] for target in targets}
    if sum(int(row.count_nonzero()) for row in rows.values()) != int(B.count_nonzero()):
        return {}
    blocks = stored_rank != rank and _in_blocks(list(rows.values()))
    lengths = values.get("magnitude_vector")
    size = stored_rank // len(targets) if blocks else stored_rank
    result: Layers = {}
    for i, target in enumerate(targets):
        columns = slice(size * i, size * (i + 1)) if blocks else slice(None)
        result[target.layer] = {
            "A": A[columns],
            "B": rows[target.layer][:, columns],
        }
        if lengths is not None:
            result[target.layer]["magnitude_vector"] = torch.split(lengths, heights)[target.place.part]
    return result


def _in_blocks(rows: list[Tensor]) -> bool:
    """Whether each part uses columns of its own, so that its rank is smaller than the stored one."""
    size, rest = divmod(rows[0].shape[1], len(rows))
    return not rest and not any(
        row[:, : size * i].any() or row[:, size * (i + 1) :].any() for i, row in enumerate(rows)
    )


def swapped_halves(value: Tensor) -> Tensor:
    """Swap the upper and the lower half of the rows."""
    return torch.cat(value.chunk(2)[::-1])
