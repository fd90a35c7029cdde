"""Inject the layers of a LoRA or of another adapter type into a denoiser with peft and freeze all other weights."""

from __future__ import annotations

import functools
import importlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from reelworks.core import optional_imports
from reelworks.core.errors import UserError, nearest
from reelworks.models.adapters import text_encoders
from reelworks.models.adapters.adapter_types.adapter_type import AdapterType
from reelworks.models.adapters.adapter_types.registry import TYPES
from reelworks.models.adapters.config import LoraConfig, Targets
from reelworks.models.api import Denoiser

_PART = re.compile(r"\.(\w+)\.default(\.weight)?$")


def inject(denoiser: Denoiser, config: LoraConfig, *, seed: int) -> None:
    """Inject an adapter's layers into a denoiser's module, in place; only they are trained, in float32, from no change.

    The denoiser has its weights and is not sharded yet. The global random generators are not changed.
    """
    module = denoiser.module
    peft = optional_imports.peft()
    targets = _targets(denoiser, config.targets)
    if config.text_encoders:
        targets += filter(text_encoders.is_trained, linear_layers(module))
    config.kind.require_fit({name: module.get_submodule(name) for name in targets}, config)  # type: ignore[misc]
    module.requires_grad_(False)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        with optional_imports.importing():  # peft asks here for the layers of other libraries
            peft.inject_adapter_in_model(peft_config(peft, config, targets), module)
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:  # peft gives them the dtype of the base and rounds the initial values to it
                parameter.data = parameter.data.float()
            layer, kind = parts([name]).get(name, ("", ""))
            if kind in config.kind.random:
                parameter.data.copy_(nn.init.kaiming_uniform_(torch.empty(parameter.shape), a=math.sqrt(5)))
            elif kind == "magnitude_vector":
                base: Any = module.get_submodule(f"{layer}.base_layer")
                parameter.data.copy_(torch.linalg.norm(base.weight.float(), dim=1))
    replace_forward(module, config)


def replace_forward(module: nn.Module, config: LoraConfig) -> None:
    """Give peft's layers in a network the forward pass of their type if it has one of its own, in place."""
    if config.kind.forward is None:
        return
    for layer in adapted_layers(module):
        layer.__class__ = _layer_class(layer.__class__, config.kind)
        config.kind.finish_layer(layer, config)


@functools.cache
def _layer_class(base: type, kind: AdapterType) -> type:
    return type(f"{type(kind).__name__}Layer", (base,), {"forward": type(kind).forward})


def peft_config(peft: Any, config: LoraConfig, layers: Iterable[str]) -> Any:
    """Return peft's settings of an adapter on some layers, given by their whole names."""
    # A pattern matches whole names; the entries of a list would also match endings.
    return config.kind.peft_config(peft, config, "|".join(map(re.escape, layers)))


def weights(module: nn.Module) -> dict[str, Tensor]:
    """Return the state dict to checkpoint: the LoRA's parameters alone if there is one, else all."""
    state: dict[str, Tensor] = module.state_dict()
    return {name: state[name] for name in parts(state)} or state


def adapted_layers(module: nn.Module) -> list[Any]:
    """Return the layers of a network that have an adapter, which are peft's."""
    tuners: Any = importlib.import_module("peft.tuners.tuners_utils")
    return [child for child in module.modules() if isinstance(child, tuners.BaseTunerLayer)]


@contextmanager
def disable_adapters(module: nn.Module) -> Iterator[None]:
    """Run a network as its base. `requires_grad` is unchanged, since FSDP reads it when a unit is first called."""
    layers = adapted_layers(module)
    trained = [(parameter, parameter.requires_grad) for parameter in module.parameters()]

    def enable(on: bool) -> None:
        for layer in layers:
            layer.enable_adapters(on)
        for parameter, requires_grad in trained:
            parameter.requires_grad_(requires_grad)

    try:
        enable(False)
        yield
    finally:
        enable(True)


def scale(module: nn.Module, factor: float) -> None:
    """Multiply what a LoRA, LoHa or LoKr adds to the weights of its network by a factor, in place."""
    for layer in adapted_layers(module):
        layer.scaling = {name: factor * value for name, value in layer.scaling.items()}


@torch.no_grad()
def merge(module: nn.Module) -> dict[str, Tensor]:
    """Merge a LoRA into its network, in place, and return all weights under their names without a LoRA."""
    for layer in adapted_layers(module):
        layer.merge()
    low_rank = parts(state := module.state_dict())
    return {name.replace(".base_layer.", "."): v for name, v in state.items() if name not in low_rank}


def group_by_layer(state: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Return an adapter's tensors by layer and then by kind, such as "A"."""
    layers: dict[str, dict[str, Tensor]] = {}
    for key, (layer, kind) in parts(state).items():
        layers.setdefault(layer, {})[kind] = state[key]
    return layers


def parts(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return the layer and the part of each name that is an adapter's tensor.

    Parts of a LoRA are A, B and magnitude_vector; others have peft's names, such as lokr_w1, hada_w1_a and oft_R.
    """
    stems = {end.removesuffix(".weight"): kind for each in TYPES.values() for kind, end in each.tensors.items()}
    matches = {name: match for name in names if (match := _PART.search(name)) and match[1] in stems}
    return {name: (name[: match.start()], stems[match[1]]) for name, match in matches.items()}


def linear_layers(module: nn.Module) -> list[str]:
    """Return the names of a network's linear layers, before a LoRA is injected."""
    return [name for name, child in module.named_modules() if isinstance(child, nn.Linear)]


def _targets(denoiser: Denoiser, asked: Targets | Sequence[str]) -> list[str]:
    if asked == "default" or asked == "blocks":
        return list(denoiser.lora_targets(asked))
    layers = [layer for layer in linear_layers(denoiser.module) if text_encoders.part_of(layer) is None]
    for target in asked:
        if not any(matches(target, layer) for layer in layers):
            known = layers if target.count(".") > 1 else {_ending(layer) for layer in layers}
            raise UserError(
                "no linear layer of this model has that name",
                code="unknown-layer",
                field="lora.targets",
                value=target,
                remedy=nearest(target, known),
            )
    if not asked:
        raise UserError(
            "the list names no layer to train",
            code="no-layer-to-train",
            field="lora.targets",
            value=[],
            remedy='use "default", or name layers',
        )
    return [layer for layer in layers if any(matches(target, layer) for target in asked)]


def matches(target: str, layer: str) -> bool:
    """Whether an entry of `lora.targets` means a layer: it is the name or the last parts of it, and "*" is any one part."""
    asked = target.split(".")
    last = layer.split(".")[-len(asked) :]
    return len(last) == len(asked) and all(part in ("*", own) for part, own in zip(asked, last, strict=True))


def _ending(layer: str) -> str:
    """Return the last part of a name that is more than an index: `to_out.0` rather than `0`."""
    path = layer.split(".")
    return ".".join(path[-2:] if path[-1].isdecimal() else path[-1:])
