"""Map the tensors of a LoRA file to layers of the network, and to rows of these."""

from __future__ import annotations

import functools
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from reelworks.models.family import FamilyConfig, KeyRule
from reelworks.models.lora.config import LoraConfig

METADATA = "lora_adapter_metadata"  # where diffusers looks for settings


class Place(NamedTuple):
    """Place of a layer of diffusers in a release.

    Attributes:
        layer: The release's layer.
        part: Which of its parts, from above.
        heights: Rows of its parts, in proportion to each other.
        swapped: Its halves of rows are the other way round there.
    """

    layer: str
    part: int = 0
    heights: tuple[int, ...] = (1,)
    swapped: bool = False


def place(config: FamilyConfig | None, layer: str) -> Place:
    """Return the place of a layer in its family's release; of None, and where names are the same, the layer itself."""
    if config is None:
        return Place(layer)
    rules = _compiled(config.network.release_layers)
    return next((found for rule in rules if (found := _apply(*rule, layer))), Place(layer))


@functools.cache
def _compiled(rules: tuple[KeyRule, ...]) -> list[tuple[re.Pattern[str], Place]]:
    return list(_patterns(rules))


def _patterns(rules: Iterable[KeyRule]) -> Iterator[tuple[re.Pattern[str], Place]]:
    for parts, release, heights, swapped in rules:
        names = parts.split()
        for i, name in enumerate(names):
            escaped = re.escape(name).replace(r"\.N\.", r"\.(\d+)\.").replace(r"\.\*", r"\.(.+)")
            pattern = re.compile(escaped)
            layer = release.replace(".N.", r".\1.").replace(".*", r".\1")
            yield pattern, Place(layer, i, heights or (1,) * len(names), swapped)


def _apply(pattern: re.Pattern[str], found: Place, layer: str) -> Place | None:
    match = pattern.fullmatch(layer)
    return found._replace(layer=match.expand(found.layer)) if match else None


_PREFIXES = (
    "base_model.model.",
    "transformer.",
    "unet.",
    "diffusion_model.",
    "lora_unet_",
    "lora_transformer_",
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
"""A, B, and what else there is of each layer."""


class TargetLayer(NamedTuple):
    """A layer of the network that a layer of a file may hold, whole or a part of it."""

    layer: str
    place: Place


def split(key: str) -> tuple[str, str] | None:
    """The layer, as it is spelt there, and the part of it that a name in a file means; None if it means none."""
    ending = next((ending for ending in _ENDINGS if key.endswith(ending)), None)
    if ending is None:
        return None
    stem = key.removesuffix(ending)
    return next((stem.removeprefix(p) for p in _PREFIXES if stem.startswith(p)), stem), _ENDINGS[ending]


def homes(layers: Iterable[str], family: FamilyConfig | None) -> dict[str, list[TargetLayer]]:
    """The layers that each spelling in a file may hold, in the order of their rows there."""
    found: dict[str, dict[TargetLayer, None]] = defaultdict(dict)
    for layer in layers:
        for placed_at in (Place(layer), place(family, layer)):
            for spelling in (placed_at.layer, placed_at.layer.replace(".", "_")):
                found[spelling][TargetLayer(layer, placed_at)] = None
    return {spelling: sorted(there, key=lambda home: home.place.part) for spelling, there in found.items()}


def placed(
    tensors: Mapping[str, Tensor],
    layers: Iterable[str],
    config: LoraConfig,
    family: FamilyConfig | None,
    told: Mapping[str, str],
) -> tuple[Layers, list[str]]:
    """Give the tensors of a file to the layers that they mean; also the names that mean none.

    Args:
        tensors: Those of the file, by name.
        layers: Layers of the network that have a LoRA.
        config: As they were put in.
        family: The network's sizes, of a network of diffusers.
        told: Texts of the file's header.
    """
    spelt, strange = homes(layers, family), []
    there: Layers = defaultdict(dict)
    for key, value in tensors.items():
        where = split(key)
        if where is None or where[0] not in spelt:
            strange.append(key)
        else:
            there[where[0]][where[1]] = value
    found: Layers = {}
    for spelling, kinds in there.items():
        if not kinds.keys() >= {"A", "B"}:
            strange += [f"{spelling} ({kind})" for kind in kinds]
            continue
        kinds.setdefault("alpha", torch.tensor(_told_alpha(told, kinds["A"].shape[0])))
        parts = _parted(kinds, spelt[spelling], config.rank)
        strange += [spelling] * (not parts)
        found |= parts
    return found, strange


def _parted(kinds: dict[str, Tensor], there: list[TargetLayer], rank: int) -> Layers:
    """Split one stored layer into the target layers. Empty if some rows belong to layers that are not adapted."""
    place = there[0].place
    values = {k: v.flatten() if k == "magnitude_vector" else v for k, v in kinds.items()}
    if place.heights == (1,):
        if place.swapped:
            values |= {k: swapped_halves(v) for k, v in values.items() if k in ("B", "magnitude_vector")}
        return {there[0].layer: values}
    A, B, wide = values["A"], values["B"], values["A"].shape[0]
    heights = [B.shape[0] * height // sum(place.heights) for height in place.heights]
    rows = {home.layer: torch.split(B, heights)[home.place.part] for home in there}
    if sum(int(row.count_nonzero()) for row in rows.values()) != int(B.count_nonzero()):
        return {}
    blocks = wide != rank and _in_blocks(list(rows.values()))
    lengths = values.get("magnitude_vector")
    result: Layers = {}
    for i, home in enumerate(there):
        size = wide // len(there) if blocks else wide
        columns = slice(size * i, size * (i + 1)) if blocks else slice(None)
        result[home.layer] = {
            "A": A[columns],
            "B": rows[home.layer][:, columns],
            "alpha": values["alpha"] * size / wide,
        }
        if lengths is not None:
            result[home.layer]["magnitude_vector"] = torch.split(lengths, heights)[home.place.part]
    return result


def _in_blocks(rows: list[Tensor]) -> bool:
    """Whether each part uses columns of its own, so that it has a smaller rank than all together."""
    size, rest = divmod(rows[0].shape[1], len(rows))
    return not rest and not any(
        row[:, : size * i].any() or row[:, size * (i + 1) :].any() for i, row in enumerate(rows)
    )


def _told_alpha(told: Mapping[str, str], rank: int) -> float:
    """Alpha as a header of diffusers tells it; where nothing does, updates count once."""
    settings = {key.rpartition(".")[2]: value for key, value in json.loads(told.get(METADATA, "{}")).items()}
    return float(settings.get("lora_alpha", rank))


def swapped_halves(value: Tensor) -> Tensor:
    """Put the lower half of the rows above the upper one."""
    return torch.cat(value.chunk(2)[::-1])
