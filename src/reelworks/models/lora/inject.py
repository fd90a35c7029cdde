"""Low-rank layers inside a denoiser: peft puts them in, all else is frozen."""

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
    """Put low-rank layers into a denoiser's module, in place; they alone are trained, in float32.

    Their updates begin as zero.

    Args:
        denoiser: With its weights, not sharded yet.
        config: Which layers, of which rank.
        seed: Decides their first values; the global generators are left as they were.

    Raises:
        UserError: A target names no linear layer.
    """
    module = denoiser.module
    names = _targets(denoiser, config.targets)
    peft: Any = importlib.import_module("peft")
    settings = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.exact_alpha,
        lora_dropout=config.dropout,
        # A pattern names them exactly; entries of a list would match as endings too.
        target_modules="|".join(map(re.escape, names)),
        use_dora=config.dora,
    )
    module.requires_grad_(False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        peft.inject_adapter_in_model(settings, module)
        for name, parameter in module.named_parameters():
            if (
                parameter.requires_grad
            ):  # peft gives them the dtype of the base, and rounds what it draws to it
                parameter.data = parameter.data.float()
            if _is_drawn(name):
                drawn = torch.empty(parameter.shape)
                nn.init.kaiming_uniform_(drawn, a=math.sqrt(5))
                parameter.data.copy_(drawn)


def weights(module: nn.Module) -> dict[str, Tensor]:
    """Return the state dict to checkpoint: the LoRA's parameters alone if there is one, else all."""
    state: dict[str, Tensor] = module.state_dict()
    return {name: state[name] for name in parts(state)} or state


@contextmanager
def without(module: nn.Module) -> Iterator[None]:
    """Run a network as its base. What is trained stays marked so: FSDP looks for it when a unit is first called."""
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
    """Whole weights of a network with its LoRA added in, under the names that it has without one; changes it."""
    tuners: Any = importlib.import_module("peft.tuners.tuners_utils")
    layers = {
        name: child for name, child in module.named_modules() if isinstance(child, tuners.BaseTunerLayer)
    }
    for layer in layers.values():
        layer.merge()
    state = module.state_dict()
    low_rank = parts(state)
    return {name.replace(".base_layer.", "."): v for name, v in state.items() if name not in low_rank}


def parts(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """The layer and the part of it (A, B or magnitude_vector) that each name of a low-rank tensor means."""
    found = {name: match for name in names if (match := _PART.search(name))}
    return {name: (name[: match.start()], match[1]) for name, match in found.items()}


def _is_drawn(name: str) -> bool:
    """True for what does not begin as zeros, or as lengths of the base's rows."""
    return (match := _PART.search(name)) is not None and match[1] == "A"


def linear_layers(module: nn.Module) -> list[str]:
    """Names of a network's linear layers, as they are without a LoRA."""
    return [name for name, child in module.named_modules() if isinstance(child, nn.Linear)]


def _targets(denoiser: Denoiser, asked: Targets | Sequence[str]) -> list[str]:
    """Whole names of the layers to adapt."""
    if asked == "default" or asked == "blocks":
        return list(denoiser.lora_targets(asked))
    layers = linear_layers(denoiser.module)
    for target in asked:
        if not any(_means(target, layer) for layer in layers):
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
            "no layer is left to train",
            code="no-layer-to-train",
            field="lora.targets",
            value=[],
            remedy='say "default", or name layers',
        )
    return [layer for layer in layers if any(_means(target, layer) for target in asked)]


def _means(target: str, layer: str) -> bool:
    return layer == target or layer.endswith(f".{target}")


def _ending(layer: str) -> str:
    """The last part of a name that says something: `to_out.0` rather than `0`."""
    path = layer.split(".")
    return ".".join(path[-2:] if path[-1].isdecimal() else path[-1:])
