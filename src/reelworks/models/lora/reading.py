"""LoRA files as they are read: in any convention, exactly, or not at all."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from reelworks.core.errors import UserError
from reelworks.models import known, weight_files
from reelworks.models.config import ADAPTED, PRESETS
from reelworks.models.family import FamilyConfig
from reelworks.models.lora import inject, release
from reelworks.models.lora.base import Base
from reelworks.models.lora.config import LoraConfig
from reelworks.models.lora.files import BASE, METADATA, swapped_halves
from reelworks.models.lora.release import Place

_SHOWN = 3
_PEFT = ("adapter_model.safetensors", "adapter_config.json")  # its file, and where it tells the settings
# Settings by which alpha / rank is not the scale.
_OTHER_RULES = ("use_rslora", "alpha_pattern", "rank_pattern")
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


class _Home(NamedTuple):
    """A layer of the network that a layer of a file may hold, whole or a part of it."""

    layer: str
    place: Place


@torch.no_grad()
def load_into(module: nn.Module, config: LoraConfig, family: FamilyConfig | None) -> None:
    """Load the file `config.weights` into a network with low-rank layers, exactly.

    Args:
        module: The network.
        config: As its layers were put in.
        family: Its sizes, of a network of diffusers.

    Raises:
        UserError: It cannot be read, is of another base, or has another rank, alpha or other layers; nothing is
            loaded then.
    """
    assert config.weights is not None
    own = dict(module.named_parameters())
    for name, value in read(config.weights, "lora.weights", own, config, family).items():
        own[name].copy_(value)


def read(
    source: str, field: str, own: Mapping[str, Tensor], config: LoraConfig, family: FamilyConfig | None
) -> dict[str, Tensor]:
    """Read a file for a network with low-rank layers; returns tensors by their names in it.

    Args:
        source: A .safetensors file.
        field: The recipe's key or the option that names it, for errors.
        own: The network's tensors, of which those of the LoRA count.
        config: As its layers were put in.
        family: Its sizes, of a network of diffusers.

    Raises:
        UserError: As for `load_into`.
    """
    try:
        told = header(source)
        tensors = weight_files.read(source, field=field)
        names = {where: name for name, where in inject.parts(own).items()}
        found, strange = _placed(tensors, {layer for layer, _ in names}, config, family, told)
        _require_rank_and_alpha(config, found)
        given = {
            (layer, kind): v for layer, kinds in found.items() for kind, v in kinds.items() if kind != "alpha"
        }
        misshapen = [w for w in given.keys() & names.keys() if given[w].shape != own[names[w]].shape]
        strange += [f"{layer} ({kind})" for layer, kind in (*misshapen, *(given.keys() - names.keys()))]
        missing = [f"{layer} ({kind})" for layer, kind in names.keys() - given.keys()]
        if strange or missing:
            raise _of_other_layers(tensors, strange, missing, len(names))
    except UserError as error:
        field = error.field or field
        value = source if error.value is None else error.value
        raise UserError(error.problem, field=field, value=value, remedy=error.remedy) from error
    return {names[where]: value for where, value in given.items()}


def header(source: str) -> dict[str, str]:
    """Texts of a file's header; the settings of one that peft wrote are those beside it.

    Raises:
        UserError: It is no file, cannot be read, or its updates count by a rule that is not ours.
    """
    path = Path(source).expanduser()
    problem, remedy = "not a .safetensors file that is there", "check the path; name the file, not its folder"
    if path.suffix == ".safetensors" and path.is_file():
        try:
            with safe_open(path, "pt") as file:
                told: dict[str, str] = file.metadata() or {}
            beside = path.with_name(_PEFT[1])
            if path.name == _PEFT[0] and METADATA not in told and beside.is_file():
                told = told | {METADATA: beside.read_text(encoding="utf-8")}
            settings = dict(json.loads(told.get(METADATA, "{}")))
        except (OSError, SafetensorError, ValueError, TypeError) as error:
            problem, remedy = f"its header cannot be read: {error}", "download or export it again"
        else:
            rules = [key for key, value in settings.items() if value and key.endswith(_OTHER_RULES)]
            if not rules:
                return told
            problem, remedy = f"its header has {rules[0]}, which is not supported", "name another file"
    raise UserError(problem, remedy=remedy)


def of_another_base(source: str, here: Base) -> str | None:
    """Warn of a file that tells another base than the one here; None if it tells none, or the same."""
    told = header(source)
    if BASE not in told or (base := Base.from_json(told[BASE])).digest == here.digest:
        return None
    return f"warning: {source} was trained on {base}, and the base here is {here}"


def split(key: str) -> tuple[str, str] | None:
    """The layer, as it is spelt there, and the part of it that a name in a file means; None if it means none."""
    ending = next((ending for ending in _ENDINGS if key.endswith(ending)), None)
    if ending is None:
        return None
    stem = key.removesuffix(ending)
    return next((stem.removeprefix(p) for p in _PREFIXES if stem.startswith(p)), stem), _ENDINGS[ending]


def homes(layers: Iterable[str], family: FamilyConfig | None) -> dict[str, list[_Home]]:
    """The layers that each spelling in a file may hold."""
    found: dict[str, dict[_Home, None]] = defaultdict(dict)
    for layer in layers:
        for place in (Place(layer), release.place(family, layer)):
            for spelling in (place.layer, place.layer.replace(".", "_")):
                found[spelling][_Home(layer, place)] = None
    return {spelling: sorted(there, key=lambda home: home.place.part) for spelling, there in found.items()}


def _placed(
    tensors: Mapping[str, Tensor],
    layers: Iterable[str],
    config: LoraConfig,
    family: FamilyConfig | None,
    told: Mapping[str, str],
) -> tuple[Layers, list[str]]:
    """Give the tensors of a file to the layers that they mean; also the names that mean none."""
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


def _parted(kinds: dict[str, Tensor], there: list[_Home], rank: int) -> Layers:
    """What each layer gets of one layer of a file; nothing if it has rows for layers that are not adapted."""
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


def _require_rank_and_alpha(config: LoraConfig, found: Layers) -> None:
    """Refuse a file whose updates would count another share here."""
    ranks = Counter(kinds["A"].shape[0] for kinds in found.values())
    alphas = Counter(float(kinds["alpha"]) for kinds in found.values())
    for name, asked, there in (("rank", config.rank, ranks), ("alpha", config.exact_alpha, alphas)):
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


def _told_alpha(told: Mapping[str, str], rank: int) -> float:
    """Alpha as a header of diffusers tells it; where nothing does, updates count once."""
    settings = {key.rpartition(".")[2]: value for key, value in json.loads(told.get(METADATA, "{}")).items()}
    return float(settings.get("lora_alpha", rank))


def _of_other_layers(
    tensors: Mapping[str, Tensor], strange: list[str], missing: list[str], own: int
) -> UserError:
    shapes = weight_files.shapes_of(tensors)
    if not known.is_lora(shapes):
        problem, remedy = known.what(shapes, for_field="lora.weights")
        return UserError(
            f"not a LoRA{': ' + problem if problem else ''}",
            remedy=remedy or "name a LoRA file; whole weights belong in model.weights",
        )
    base = closest_base(shapes) if strange else ""
    shown = ", ".join(sorted(strange or missing)[:_SHOWN])
    return UserError(
        f"a LoRA of another base or of other layers: {len(strange):,} of its {len(tensors):,} tensors fit no layer "
        f"that is adapted here, and {len(missing):,} of {own:,} here are not in it, such as {shown}{base}",
        remedy="name a LoRA of this model, and set lora.targets and lora.dora as it was trained with",
    )


def closest_base(shapes: weight_files.Shapes) -> str:
    """Name the known base that most of a LoRA's tensors fit, as the end of a sentence."""
    scores = {name: _fitting(name, shapes) for name in PRESETS}
    best = max(scores.values())
    names = " or ".join(name for name, score in scores.items() if score == best)
    total = sum(split(key) is not None and not key.endswith(".alpha") for key in shapes)
    return f"\n    closest known base: {names} ({best:,} of {total:,} tensors fit)" if best else ""


def _fitting(name: str, shapes: weight_files.Shapes) -> int:
    linear = {
        layer: child for layer, child in known.network(name).named_modules() if isinstance(child, nn.Linear)
    }
    spelt, count = homes(linear, ADAPTED.get(name)), 0
    for key, shape in shapes.items():
        where = split(key)
        there = spelt.get(where[0], []) if where else []
        if where and there and len(shape) == 2:
            layer = linear[there[0].layer]
            place = there[0].place
            whole = layer.out_features * sum(place.heights) // place.heights[place.part]
            count += shape[1] == layer.in_features if where[1] == "A" else shape[0] == whole
    return count
