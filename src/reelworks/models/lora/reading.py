"""Read LoRA files of any convention, exactly or not at all."""

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
_PEFT = ("adapter_model.safetensors", "adapter_config.json")  # the names of its file and of its settings
# Settings under which the scale is not alpha / rank.
_OTHER_RULES = ("use_rslora", "alpha_pattern", "rank_pattern")


@torch.no_grad()
def load_into(module: nn.Module, config: LoraConfig, family: FamilyConfig | None) -> None:
    """Load the file `config.weights` into a network with low-rank layers, exactly.

    Args:
        module: The network.
        config: Settings that its layers were injected with.
        family: Sizes of the network, if it is one of diffusers.

    Raises:
        UserError: The file cannot be read, belongs to another base, or has another rank, alpha or other layers;
            nothing is loaded then.
    """
    assert config.weights is not None
    own = dict(module.named_parameters())
    for name, value in read(config.weights, "lora.weights", own, config, family).items():
        own[name].copy_(value)


def read(
    source: str, field: str, own: Mapping[str, Tensor], config: LoraConfig, family: FamilyConfig | None
) -> dict[str, Tensor]:
    """Read a file for a network with low-rank layers and return its tensors by their names in the network.

    Args:
        source: A .safetensors file.
        field: The recipe's key or the option that names it, for errors.
        own: Tensors of the network; those outside the LoRA are ignored.
        config: Settings that its layers were injected with.
        family: Sizes of the network, if it is one of diffusers.

    Raises:
        UserError: As for `load_into`.
    """
    try:
        metadata = header(source)
        tensors = weights.read(source, field=field)
        names = {where: name for name, where in inject.parts(own).items()}
        state, unknown = key_mapping.placed(tensors, {layer for layer, _ in names}, config, family, metadata)
        _require_rank_and_alpha(config, state)
        values = {(layer, kind): v for layer, kinds in state.items() for kind, v in kinds.items() if kind != "alpha"}
        misshapen = [w for w in values.keys() & names.keys() if values[w].shape != own[names[w]].shape]
        unknown += [f"{layer} ({kind})" for layer, kind in (*misshapen, *(values.keys() - names.keys()))]
        missing = [f"{layer} ({kind})" for layer, kind in names.keys() - values.keys()]
        if unknown or missing:
            raise _misfit_error(tensors, unknown, missing, len(names))
    except UserError as error:
        field = error.field or field
        value = source if error.value is None else error.value
        raise UserError(error.problem, code=error.code, field=field, value=value, remedy=error.remedy) from error
    return {names[where]: value for where, value in values.items()}


def header(source: str) -> dict[str, str]:
    """Return the metadata of a file's header, with the settings from peft's own file if peft wrote it.

    Raises:
        UserError: The file is missing or unreadable, or scales its updates by a rule that is not supported.
    """
    path = Path(source).expanduser()
    problem, remedy = "not a .safetensors file, or missing", "check the path; name the file, not its folder"
    if path.suffix == ".safetensors" and path.is_file():
        try:
            with safe_open(path, "pt") as file:
                metadata: dict[str, str] = file.metadata() or {}
            settings_file = path.with_name(_PEFT[1])
            if path.name == _PEFT[0] and METADATA not in metadata and settings_file.is_file():
                metadata = metadata | {METADATA: settings_file.read_text(encoding="utf-8")}
            settings = dict(json.loads(metadata.get(METADATA, "{}")))
        except (OSError, SafetensorError, ValueError, TypeError) as error:
            problem, remedy = f"its header cannot be read: {error}", "download or export it again"
        else:
            rules = [key for key, value in settings.items() if value and key.endswith(_OTHER_RULES)]
            if not rules:
                return metadata
            problem, remedy = f"its header has {rules[0]}, which is not supported", "name another file"
    raise UserError(problem, code="lora-unreadable", remedy=remedy)


def of_another_base(source: str, here: Base) -> str | None:
    """Return a warning if a file names another base than this one; None if it names this one or none."""
    metadata = header(source)
    if BASE not in metadata or (base := Base.from_json(metadata[BASE])).digest == here.digest:
        return None
    return f"{source} was trained on {base}, and the base here is {here}"


def _require_rank_and_alpha(config: LoraConfig, layers: key_mapping.Layers) -> None:
    """Refuse a file whose rank or alpha, and so the scale of its updates, differs from the settings."""
    ranks = Counter(kinds["A"].shape[0] for kinds in layers.values())
    alphas = Counter(float(kinds["alpha"]) for kinds in layers.values())
    for name, expected, stored in (("rank", config.rank, ranks), ("alpha", config.exact_alpha, alphas)):
        # Files store alphas in 32 bits or less.
        if not all(math.isclose(value, expected, rel_tol=1e-5) for value in stored):
            shown = ", ".join(f"{value:g}" for value in sorted(stored))
            raise UserError(
                f"lora.weights has {name} {shown}",
                code="lora-settings-differ",
                field=f"lora.{name}",
                value=expected,
                remedy=f"set it to {shown}"
                if len(stored) == 1
                else "name another file: all layers must have one value",
            )


def _misfit_error(tensors: Mapping[str, Tensor], unknown: list[str], missing: list[str], own: int) -> UserError:
    shapes = weights.shapes_of(tensors)
    if not identify.is_lora(shapes):
        problem, remedy = identify.what(shapes, for_field="lora.weights")
        return UserError(
            f"not a LoRA{': ' + problem if problem else ''}",
            code="not-a-lora",
            remedy=remedy or "name a LoRA file; full weights belong in model.weights",
        )
    base = closest_base(shapes) if unknown else ""
    shown = ", ".join(sorted(unknown or missing)[:_SHOWN])
    return UserError(
        f"a LoRA of another base or of other layers: {len(unknown):,} of its {len(tensors):,} tensors fit no layer "
        f"that is adapted here, and {len(missing):,} of {own:,} here are missing in it, such as {shown}{base}",
        code="lora-does-not-fit",
        remedy="name a LoRA of this model, and set lora.targets and lora.dora to the values of its training",
    )


def closest_base(shapes: weights.Shapes) -> str:
    """Name the known base that most of a LoRA's tensors fit, as the end of an error message."""
    scores = {name: _fitting(name, shapes) for name in registry.PRESETS}
    best = max(scores.values())
    names = " or ".join(name for name, score in scores.items() if score == best)
    total = sum(key_mapping.split(key) is not None and not key.endswith(".alpha") for key in shapes)
    return f"\n    closest known base: {names} ({best:,} of {total:,} tensors fit)" if best else ""


def _fitting(name: str, shapes: weights.Shapes) -> int:
    linear = {layer: child for layer, child in identify.network(name).named_modules() if isinstance(child, nn.Linear)}
    targets_by_name, count = key_mapping.homes(linear, registry.PRESETS[name].config), 0
    for key, shape in shapes.items():
        target = key_mapping.split(key)
        targets = targets_by_name.get(target[0], []) if target else []
        if target and targets and len(shape) == 2:
            layer = linear[targets[0].layer]
            place = targets[0].place
            rows = layer.out_features * sum(place.heights) // place.heights[place.part]
            count += shape[1] == layer.in_features if target[1] == "A" else shape[0] == rows
    return count
