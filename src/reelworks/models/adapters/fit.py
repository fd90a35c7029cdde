"""Fit the tensors of an adapter's file to a network's adapter; of one that does not fit, say which settings do."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from reelworks.core import optional_imports, units
from reelworks.core.errors import UserError
from reelworks.models import identify, registry
from reelworks.models.adapters import closest, inject, key_mapping, release_layers, text_encoders
from reelworks.models.adapters.adapter_types.adapter_type import AdapterType
from reelworks.models.adapters.adapter_types.registry import LORA, TYPES
from reelworks.models.adapters.config import LoraConfig
from reelworks.models.family import FamilyConfig
from reelworks.models.storage import weights

_SHOWN = 3
# Keys of [lora] that fix the shapes of an adapter, apart from its layers.
_SHAPING = ("type", "rank", "dora", "decompose_factor", "decompose_both", "block_size")


class _FileFit(NamedTuple):
    values: dict[str, Tensor]  # by their names in the network
    unknown: list[str]  # names of the file that fit nothing
    missing: list[str]  # what the network has, and the file has not
    ranks: set[int]


def fit_to_network(
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    own: Mapping[str, Tensor],
    config: LoraConfig,
    family: FamilyConfig | None,
) -> dict[str, Tensor]:
    """Return a file's tensors by their names in a network with an adapter, whose tensors are `own`.

    Raises:
        UserError: A tensor or a layer is left over. The remedy has the settings with which the file fits, if any do.
    """
    fit = _fit(tensors, metadata, own, config, family)
    if not fit.unknown and not fit.missing:
        return fit.values
    lines = [] if family is None else _differing(tensors, metadata, own, config, family)
    pasted = "".join(f"\n    {line}" for line in lines)
    ranks = ", ".join(map(str, sorted(fit.ranks)))
    if fit.ranks - {config.rank} and (lines or family is None or len(fit.ranks) > 1):
        remedy = f"set it to {ranks}"
        if len(fit.ranks) > 1:
            remedy = f"name another file, or lower all ranks to {min(fit.ranks)} with `reelworks lora resize`"
        if lines:
            remedy = f"set in [lora], as the file was trained:{pasted}"
        raise UserError(
            f"lora.weights has rank {ranks}{', and all layers must have one' if len(fit.ranks) > 1 else ''}",
            code="lora-settings-differ",
            field="lora.rank",
            value=config.rank,
            remedy=remedy,
        )
    shapes, total = weights.shapes_of(tensors), len(inject.parts(own))
    if not identify.is_lora(shapes):
        problem, known = identify.what(shapes, for_field="lora.weights")
        raise UserError(
            f"not a LoRA{': ' + problem if problem else ''}",
            code="not-a-lora",
            remedy=known or "name a LoRA file; full weights belong in model.weights",
        )
    base = closest_base(shapes) if fit.unknown and not lines else ""
    shown = ", ".join(sorted(fit.unknown or fit.missing)[:_SHOWN])
    raise UserError(
        f"a LoRA of another base or of other layers: {len(fit.unknown):,} of its {len(tensors):,} tensors {units.verb(len(fit.unknown), 'fit')} no layer "
        f"that is adapted here, and {len(fit.missing):,} of {total:,} here {units.verb(len(fit.missing), 'are')} missing in it, such as {shown}{base}",
        code="lora-does-not-fit",
        remedy=f"set in [lora], as the file was trained:{pasted}"
        if lines
        else "name a LoRA of this model, of the types that lora.type has",
    )


def _fit(
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    own: Mapping[str, Tensor],
    config: LoraConfig,
    family: FamilyConfig | None,
) -> _FileFit:
    names = {where: name for name, where in inject.parts(own).items()}
    state, unknown = key_mapping.place_tensors(tensors, {layer for layer, _ in names}, config, family, metadata)
    values = {(layer, kind): v for layer, kinds in state.items() for kind, v in kinds.items()}
    misshapen = [w for w in values.keys() & names.keys() if values[w].shape != own[names[w]].shape]
    unknown += [f"{layer} ({kind})" for layer, kind in (*misshapen, *(values.keys() - names.keys()))]
    missing = [f"{layer} ({kind})" for layer, kind in names.keys() - values.keys()]
    ranks = {rank for kinds in state.values() if (rank := config.kind.rank_of(kinds)) is not None}
    return _FileFit({names[where]: v for where, v in values.items() if where in names}, unknown, missing, ranks)


def _differing(
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    own: Mapping[str, Tensor],
    config: LoraConfig,
    family: FamilyConfig,
) -> list[str]:
    """Return the lines of a recipe with which a file fits the network, found by trying; empty if there are none.

    Text encoders are adapted as a whole or not at all.
    """
    name = next(name for name, preset in registry.PRESETS.items() if type(preset.config) is type(family))
    with torch.device("meta"):
        network = registry.load_network(registry.family_of(name)).build(family)
    linear = {name: child for name, child in network.named_modules() if isinstance(child, nn.Linear)}
    layers = inject.group_by_layer(own)
    texts = {layer: kinds for layer, kinds in layers.items() if text_encoders.part_of(layer)}
    own_layers = {layer.removeprefix(f"{family.network.part}.") if texts else layer for layer in layers.keys() - texts}
    linear |= _linear(config.kind, {layer: {k: v.shape for k, v in kinds.items()} for layer, kinds in texts.items()})
    adapted = _adapted_layers(tensors, linear, family)
    in_network, in_texts = adapted - texts.keys(), adapted & texts.keys()
    # Two experts have names of their own, and files name neither.
    can_fit = in_network and in_texts in (set(), texts.keys()) and own_layers <= linear.keys()
    for settings in _candidates(tensors, config) if can_fit else ():
        fit = _fit(tensors, metadata, _adapter(settings, {name: linear[name] for name in adapted}), settings, family)
        if not fit.unknown and not fit.missing:
            changed = {
                key: getattr(settings, key) for key in _SHAPING if getattr(settings, key) != getattr(config, key)
            }
            if in_texts != texts.keys():
                changed["text_encoders"] = False
            if in_network != own_layers:
                changed["targets"] = _endings([layer for layer in linear if layer not in texts], in_network)
            return [f"{key} = {json.dumps('none' if value is None else value)}" for key, value in changed.items()]
    return []


def _adapted_layers(tensors: Mapping[str, Tensor], linear: Collection[str], family: FamilyConfig) -> set[str]:
    """Return the layers that a file has updates of; none if some of its tensors fit no layer.

    Of a layer of the release, parts whose rows are zeros have none, unless all are: such a file was never trained.
    """
    homes, adapted = release_layers.homes(linear, family), set()
    stacked = {kind.stacked for kind in TYPES.values()}
    for key, value in tensors.items():
        target = key_mapping.split_name(key)
        targets = homes.get(target[0]) if target else None
        if target is None or targets is None:
            return set()
        if target[1] in stacked and len(targets) > 1:
            adapted |= {target.layer for target in release_layers.trained(value, targets)}
        elif len(targets) == 1:
            adapted.add(targets[0].layer)
    return adapted


def _candidates(tensors: Mapping[str, Tensor], config: LoraConfig) -> Iterator[LoraConfig]:
    """Return the settings that a file may have been trained with."""
    found = [(key_mapping.split_name(key), value.shape) for key, value in tensors.items()]
    shapes = {target[1]: shape for target, shape in reversed(found) if target is not None}  # of the first of each kind
    for kind in TYPES.values():
        yield from (LoraConfig(**settings) for settings in kind.candidates(shapes, config))


def _linear(kind: AdapterType, layers: Mapping[str, Mapping[str, torch.Size]]) -> dict[str, nn.Linear]:
    """Return linear layers, without numbers, that updates are of; those of rotations of inputs have one output."""
    with torch.device("meta"):
        tensors = {layer: {k: torch.empty(shape) for k, shape in kinds.items()} for layer, kinds in layers.items()}
        sides = {layer: kind.shape(kinds) for layer, kinds in tensors.items()}
        return {layer: nn.Linear(columns, max(rows, 1)) for layer, (rows, columns) in sides.items()}


def settings_of_shapes(kind: AdapterType, layers: Mapping[str, Mapping[str, torch.Size]]) -> LoraConfig | None:
    """Return settings with which peft builds an adapter of these shapes on linear layers, found by trying."""
    shapes = {name: shape for kinds in reversed([*layers.values()]) for name, shape in kinds.items()}
    linear = _linear(kind, layers)

    def builds(config: LoraConfig, names: Iterable[str]) -> bool:
        own = _adapter(config, {layer: linear[layer] for layer in names})
        built = {where: own[name].shape for name, where in inject.parts(own).items()}
        return built == {(layer, kind): shape for layer in names for kind, shape in layers[layer].items()}

    first = [next(iter(layers))]  # which is quick, and refuses most
    configs = (
        LoraConfig(**settings) for settings in kind.candidates(shapes, LoraConfig.model_validate({"type": kind.name}))
    )
    return next((config for config in configs if builds(config, first) and builds(config, layers)), None)


def _adapter(config: LoraConfig, linear: Mapping[str, nn.Linear]) -> dict[str, Tensor]:
    """Return the tensors of an adapter on some layers, without numbers."""
    peft = optional_imports.peft()
    module = nn.Module()
    for name, child in linear.items():
        *path, last = name.split(".")
        parent = module
        for part in path:
            if not hasattr(parent, part):
                parent.add_module(part, nn.Module())
            parent = parent.get_submodule(part)
        parent.add_module(last, nn.Linear(child.in_features, child.out_features, device="meta"))
    with torch.device("meta"):
        peft.inject_adapter_in_model(inject.peft_config(peft, config, linear), module)
    return dict(module.named_parameters())


def _endings(layers: Collection[str], adapted: set[str]) -> list[str]:
    """Return the shortest names with which `lora.targets` means these layers and no others."""
    endings, left = [], [layer for layer in layers if layer in adapted]
    while left:
        path = left[0].split(".")
        # An index alone says nothing to a reader: `to_out.0` rather than `0`.
        names = (".".join(path[i:]) for i in reversed(range(len(path))) if i == 0 or not path[i].isdecimal())
        ending = next(name for name in names if {one for one in layers if inject.matches(name, one)} <= adapted)
        endings.append(ending)
        left = [layer for layer in left if not inject.matches(ending, layer)]
    return endings


def closest_base(shapes: weights.Shapes) -> str:
    """Name the known base that most of a LoRA's layers fit, as the end of an error message."""
    sizes: dict[str, tuple[int, int]] = {}
    for key, shape in shapes.items():
        target = key_mapping.split_name(key, LORA)
        # A LoKr, LoHa or OFT has none, and its shapes do not tell those of layers.
        if target is not None and len(shape) == 2:
            rows, columns = sizes.get(target[0], (0, 0))
            sizes[target[0]] = (rows, shape[1]) if target[1] == "A" else (shape[0], columns)
    found = closest.closest(sizes) if sizes else None
    if found is None or not found.names:
        return ""
    return f"\n    closest known base: {' or '.join(found.names)} ({found.fitting:,} of {found.total:,} layers fit)"
