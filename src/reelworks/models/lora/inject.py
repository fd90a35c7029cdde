"""Inject low-rank layers into a denoiser with peft and freeze all other weights."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from reelworks.core.errors import UserError, nearest
from reelworks.models.api import Denoiser
from reelworks.models.lora.config import LoraConfig, Targets

_PART = re.compile(r"\.lora_(A|B|magnitude_vector)\.default\.weight$")


def inject(denoiser: Denoiser, config: LoraConfig, *, seed: int) -> None:
    """Inject low-rank layers into a denoiser's module, in place; only they are trained, in float32, from zero updates.

    The denoiser has its weights and is not sharded yet. The global random generators are not changed.
    """
    module = denoiser.module
    peft: Any = importlib.import_module("peft")
    settings = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.exact_alpha,
        lora_dropout=config.dropout,
        # A pattern matches whole names; the entries of a list would also match endings.
        target_modules="|".join(map(re.escape, _targets(denoiser, config.targets))),
        use_dora=config.dora,
    )
    module.requires_grad_(False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        peft.inject_adapter_in_model(settings, module)
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:  # peft gives them the dtype of the base and rounds the initial values to it
                parameter.data = parameter.data.float()
            if name.endswith(".lora_A.default.weight"):  # the others start as zeros, or as row norms of the base
                drawn = torch.empty(parameter.shape)
                nn.init.kaiming_uniform_(drawn, a=math.sqrt(5))
                parameter.data.copy_(drawn)


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


def parts(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return the layer and the part (A, B or magnitude_vector) of each name that is a low-rank tensor's."""
    matches = {name: match for name in names if (match := _PART.search(name))}
    return {name: (name[: match.start()], match[1]) for name, match in matches.items()}


def linear_layers(module: nn.Module) -> list[str]:
    """Return the names of a network's linear layers, before a LoRA is injected."""
    return [name for name, child in module.named_modules() if isinstance(child, nn.Linear)]


def _targets(denoiser: Denoiser, asked: Targets | Sequence[str]) -> list[str]:
    if asked == "default" or asked == "blocks":
        return list(denoiser.lora_targets(asked))
    layers = linear_layers(denoiser.module)
    for target in asked:
        if not any(_matches(target, layer) for layer in layers):
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
    return [layer for layer in layers if any(_matches(target, layer) for target in asked)]


def _matches(target: str, layer: str) -> bool:
    return layer == target or layer.endswith(f".{target}")


def _ending(layer: str) -> str:
    """Return the last part of a name that is more than an index: `to_out.0` rather than `0`."""
    path = layer.split(".")
    return ".".join(path[-2:] if path[-1].isdecimal() else path[-1:])
