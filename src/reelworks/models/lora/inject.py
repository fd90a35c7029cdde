"""Inject the layers of a LoRA, LoKr, LoHa or OFT into a denoiser with peft and freeze all other weights."""

from __future__ import annotations

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
from reelworks.models.api import Denoiser
from reelworks.models.lora.config import LoraConfig, Targets

_PART = re.compile(
    r"\.(?:lora_(?P<lora>A|B|magnitude_vector)\.default\.weight|(?P<lycoris>(?:lokr|hada)_\w+)\.default"
    r"|(?P<oft>oft_R)\.default\.weight)$"
)
# Parts that begin with random values; the others begin as zeros, or as row norms of the base.
_DRAWN = ("A", "lokr_w1_b", "lokr_w2", "lokr_w2_a", "lokr_w2_b", "hada_w1_a", "hada_w1_b", "hada_w2_a")


def inject(denoiser: Denoiser, config: LoraConfig, *, seed: int) -> None:
    """Inject an adapter's layers into a denoiser's module, in place; only they are trained, in float32, from no change.

    The denoiser has its weights and is not sharded yet. The global random generators are not changed.
    """
    module = denoiser.module
    peft = optional_imports.peft()
    targets = _targets(denoiser, config.targets)
    if config.type == "oft":
        _require_whole_blocks(module, targets, config.block_size)
    module.requires_grad_(False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        with optional_imports.importing():  # peft asks here for the layers of other libraries
            peft.inject_adapter_in_model(settings(peft, config, targets), module)
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:  # peft gives them the dtype of the base and rounds the initial values to it
                parameter.data = parameter.data.float()
            if parts([name]).get(name, ("", ""))[1] in _DRAWN:
                drawn = torch.empty(parameter.shape)
                nn.init.kaiming_uniform_(drawn, a=math.sqrt(5))
                parameter.data.copy_(drawn)
    replace(module, config)


def replace(module: nn.Module, config: LoraConfig) -> None:
    """Give peft's layers of a LoKr, LoHa or OFT the forward passes of `lycoris_layers`, in place."""
    if config.type != "lora":
        from reelworks.models.lora import lycoris_layers  # imports peft

        lycoris_layers.replace(module, config)


def settings(peft: Any, config: LoraConfig, layers: Iterable[str]) -> Any:
    """Return peft's settings of an adapter on some layers, given by their whole names."""
    # A pattern matches whole names; the entries of a list would also match endings.
    target_modules = "|".join(map(re.escape, layers))
    if config.type == "lora":
        return peft.LoraConfig(
            r=config.rank,
            lora_alpha=config.exact_alpha,
            lora_dropout=config.dropout,
            target_modules=target_modules,
            use_dora=config.dora,
        )
    if config.type == "oft":
        return peft.OFTConfig(r=0, oft_block_size=config.block_size, target_modules=target_modules)
    if config.type == "loha":
        return peft.LoHaConfig(r=config.rank, alpha=config.exact_alpha, target_modules=target_modules)
    return peft.LoKrConfig(
        r=config.rank,
        alpha=config.exact_alpha,
        decompose_factor=config.decompose_factor or -1,
        decompose_both=config.decompose_both,
        target_modules=target_modules,
    )


def _require_whole_blocks(module: nn.Module, targets: Sequence[str], block_size: int) -> None:
    """Refuse a block size that does not divide the width of each layer; peft would take another one there."""
    widths = {name: module.get_submodule(name).in_features for name in targets}
    for name, width in widths.items():
        if width % block_size:  # type: ignore[operator]
            raise UserError(
                f"blocks must divide the {width} inputs of {name}",
                code="block-size-not-a-divisor",
                field="lora.block_size",
                value=block_size,
                remedy=f"set it to a divisor of {math.gcd(*widths.values())}",  # type: ignore[arg-type]
            )


def weights(module: nn.Module) -> dict[str, Tensor]:
    """Return the state dict to checkpoint: the LoRA's parameters alone if there is one, else all."""
    state: dict[str, Tensor] = module.state_dict()
    return {name: state[name] for name in parts(state)} or state


@contextmanager
def adapters_disabled(module: nn.Module) -> Iterator[None]:
    """Run a network as its base. `requires_grad` is unchanged, since FSDP reads it when a unit is first called."""
    tuners: Any = importlib.import_module("peft.tuners.tuners_utils")
    layers = [child for child in module.modules() if isinstance(child, tuners.BaseTunerLayer)]
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
    tuners: Any = importlib.import_module("peft.tuners.tuners_utils")
    for child in module.modules():
        if isinstance(child, tuners.BaseTunerLayer):
            child.scaling = {name: factor * value for name, value in child.scaling.items()}


@torch.no_grad()
def merged(module: nn.Module) -> dict[str, Tensor]:
    """Merge a LoRA into its network, in place, and return all weights under their names without a LoRA."""
    tuners: Any = importlib.import_module("peft.tuners.tuners_utils")
    for child in list(module.modules()):
        if isinstance(child, tuners.BaseTunerLayer):
            child.merge()
    state = module.state_dict()
    low_rank = parts(state)
    return {name.replace(".base_layer.", "."): v for name, v in state.items() if name not in low_rank}


def by_layer(state: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Return an adapter's tensors by layer and then by kind, such as "A"."""
    layers: dict[str, dict[str, Tensor]] = {}
    for key, (layer, kind) in parts(state).items():
        layers.setdefault(layer, {})[kind] = state[key]
    return layers


def parts(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return the layer and the part of each name that is an adapter's tensor.

    Parts of a LoRA are A, B and magnitude_vector; others have peft's names, such as lokr_w1, hada_w1_a and oft_R.
    """
    matches = {name: match for name in names if (match := _PART.search(name))}
    return {name: (name[: match.start()], str(match[match.lastgroup or 0])) for name, match in matches.items()}


def linear_layers(module: nn.Module) -> list[str]:
    """Return the names of a network's linear layers, before a LoRA is injected."""
    return [name for name, child in module.named_modules() if isinstance(child, nn.Linear)]


def _targets(denoiser: Denoiser, asked: Targets | Sequence[str]) -> list[str]:
    if asked == "default" or asked == "blocks":
        return list(denoiser.lora_targets(asked))
    layers = linear_layers(denoiser.module)
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
    """Whether an entry of `lora.targets` means a layer."""
    return layer == target or layer.endswith(f".{target}")


def _ending(layer: str) -> str:
    """Return the last part of a name that is more than an index: `to_out.0` rather than `0`."""
    path = layer.split(".")
    return ".".join(path[-2:] if path[-1].isdecimal() else path[-1:])
