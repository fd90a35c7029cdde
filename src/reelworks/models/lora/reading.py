"""LoRA files as they are read: in any convention, exactly, or not at all."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from reelworks.core.errors import UserError
from reelworks.models import identify, registry, weights
from reelworks.models.family import FamilyConfig
from reelworks.models.lora import inject, key_mapping
from reelworks.models.lora.base_model import Base
from reelworks.models.lora.config import LoraConfig
from reelworks.models.lora.files import BASE
from reelworks.models.lora.key_mapping import METADATA

_SHOWN = 3
_PEFT = ("adapter_model.safetensors", "adapter_config.json")  # its file, and where it tells the settings
# Settings by which alpha / rank is not the scale.
_OTHER_RULES = ("use_rslora", "alpha_pattern", "rank_pattern")


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
        tensors = weights.read(source, field=field)
        names = {where: name for name, where in inject.parts(own).items()}
        found, strange = key_mapping.placed(tensors, {layer for layer, _ in names}, config, family, told)
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
        raise UserError(
            error.problem, code=error.code, field=field, value=value, remedy=error.remedy
        ) from error
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
    raise UserError(problem, code="lora-unreadable", remedy=remedy)


def of_another_base(source: str, here: Base) -> str | None:
    """Warn of a file that tells another base than the one here; None if it tells none, or the same."""
    told = header(source)
    if BASE not in told or (base := Base.from_json(told[BASE])).digest == here.digest:
        return None
    return f"{source} was trained on {base}, and the base here is {here}"


def _require_rank_and_alpha(config: LoraConfig, found: key_mapping.Layers) -> None:
    """Refuse a file whose updates would count another share here."""
    ranks = Counter(kinds["A"].shape[0] for kinds in found.values())
    alphas = Counter(float(kinds["alpha"]) for kinds in found.values())
    for name, asked, there in (("rank", config.rank, ranks), ("alpha", config.exact_alpha, alphas)):
        # Files hold alphas as numbers of 32 bits or less.
        if not all(math.isclose(value, asked, rel_tol=1e-5) for value in there):
            shown = ", ".join(f"{value:g}" for value in sorted(there))
            raise UserError(
                f"the LoRA that it begins with has {name} {shown}",
                code="lora-settings-differ",
                field=f"lora.{name}",
                value=asked,
                remedy=f"set it to {shown}"
                if len(there) == 1
                else "name another file: one value serves all layers",
            )


def _of_other_layers(
    tensors: Mapping[str, Tensor], strange: list[str], missing: list[str], own: int
) -> UserError:
    shapes = weights.shapes_of(tensors)
    if not identify.is_lora(shapes):
        problem, remedy = identify.what(shapes, for_field="lora.weights")
        return UserError(
            f"not a LoRA{': ' + problem if problem else ''}",
            code="not-a-lora",
            remedy=remedy or "name a LoRA file; whole weights belong in model.weights",
        )
    base = closest_base(shapes) if strange else ""
    shown = ", ".join(sorted(strange or missing)[:_SHOWN])
    return UserError(
        f"a LoRA of another base or of other layers: {len(strange):,} of its {len(tensors):,} tensors fit no layer "
        f"that is adapted here, and {len(missing):,} of {own:,} here are not in it, such as {shown}{base}",
        code="lora-does-not-fit",
        remedy="name a LoRA of this model, and set lora.targets and lora.dora as it was trained with",
    )


def closest_base(shapes: weights.Shapes) -> str:
    """Name the known base that most of a LoRA's tensors fit, as the end of a sentence."""
    scores = {name: _fitting(name, shapes) for name in registry.PRESETS}
    best = max(scores.values())
    names = " or ".join(name for name, score in scores.items() if score == best)
    total = sum(key_mapping.split(key) is not None and not key.endswith(".alpha") for key in shapes)
    return f"\n    closest known base: {names} ({best:,} of {total:,} tensors fit)" if best else ""


def _fitting(name: str, shapes: weights.Shapes) -> int:
    linear = {
        layer: child
        for layer, child in identify.network(name).named_modules()
        if isinstance(child, nn.Linear)
    }
    spelt, count = key_mapping.homes(linear, registry.PRESETS[name].config), 0
    for key, shape in shapes.items():
        where = key_mapping.split(key)
        there = spelt.get(where[0], []) if where else []
        if where and there and len(shape) == 2:
            layer = linear[there[0].layer]
            place = there[0].place
            whole = layer.out_features * sum(place.heights) // place.heights[place.part]
            count += shape[1] == layer.in_features if where[1] == "A" else shape[0] == whole
    return count
