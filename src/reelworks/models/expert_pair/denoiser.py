"""Denoisers of two networks with one `predict`: each clip goes to the expert of its timestep, or without caption to a guide."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import final

import torch
from torch import Tensor, nn

from reelworks.models.adapters.config import Targets
from reelworks.models.api import DenoiserInputs, ShardingPlan
from reelworks.models.base_model import Base
from reelworks.models.diffusers_denoiser import FamilyDenoiser

Predict = Callable[[DenoiserInputs], Tensor]
GUIDE = "unconditional_transformer"  # its folder in a pipeline


def on_both_sides(inputs: DenoiserInputs, is_first_B: Tensor, first: Predict, second: Predict) -> Tensor:
    """Return the outputs `[B, C, T, H, W]` of the network of each clip."""
    order_B, count = is_first_B.argsort(descending=True, stable=True), int(is_first_B.sum())
    sides = [(first, order_B[:count]), (second, order_B[count:])]
    outputs = [predict(inputs.each(itemgetter(index))) for predict, index in sides if len(index)]
    return torch.cat(outputs)[order_B.argsort()]


@final
class ExpertPair(nn.Module):
    """A module of both networks, named as their folders in a pipeline."""

    def __init__(self, transformer: nn.Module, transformer_2: nn.Module) -> None:
        super().__init__()
        self.transformer, self.transformer_2 = transformer, transformer_2


@final
class ExpertPairDenoiser:
    """A denoiser of two networks of diffusers, between which `switch_timestep` decides.

    A micro-batch may have clips on both sides of that timestep, as in validation. With several ranks, all must
    call the same experts, since a sharded network is called by all ranks or by none.
    """

    def __init__(self, high: FamilyDenoiser, low: FamilyDenoiser, switch_timestep: float) -> None:
        self.module: nn.Module = ExpertPair(high.module, low.module)
        self.contract, self.config, self.switch_timestep = high.contract, high.config, switch_timestep
        self.latent_channels, self.runs_on_meta = high.latent_channels, high.runs_on_meta
        self.base: Base | None = None
        self._high, self._low = high, low

    def predict(self, inputs: DenoiserInputs) -> Tensor:
        """Return the velocity `[B, C, T, H, W]` of each clip's expert."""
        if inputs.time.is_meta:  # without values, run both
            return self._high.predict(inputs) + self._low.predict(inputs)
        return on_both_sides(inputs, inputs.time >= self.switch_timestep, self._high.predict, self._low.predict)

    def sharding(self) -> ShardingPlan:
        """Return the blocks of both, and both."""
        return ShardingPlan([*self._high.sharding().blocks, *self._low.sharding().blocks], [*self.module.children()])

    def lora_targets(self, of: Targets = "default") -> Sequence[str]:
        """Name the linear layers of the attentions, or of the blocks, of both experts."""
        experts = {"transformer": self._high, "transformer_2": self._low}
        return [f"{name}.{target}" for name, expert in experts.items() for target in expert.lora_targets(of)]


@final
class GuidedDenoiser:
    """A denoiser of two networks, of which the second predicts for clips without caption and sees no text at all."""

    def __init__(self, network: FamilyDenoiser, guide: FamilyDenoiser) -> None:
        self.module: nn.Module = nn.ModuleDict({network.config.network.part: network.module, GUIDE: guide.module})
        self.contract, self.config = network.contract, network.config
        self.latent_channels, self.runs_on_meta = network.latent_channels, network.runs_on_meta
        self.base: Base | None = network.base
        self._network, self._guide = network, guide

    def predict(self, inputs: DenoiserInputs) -> Tensor:
        """Return the velocity `[B, C, T, H, W]` of each clip's network."""
        return on_both_sides(inputs, ~inputs.drop_text, self._network.predict, self._without_text)

    def _without_text(self, inputs: DenoiserInputs) -> Tensor:
        none = dataclasses.replace(inputs, text=inputs.text[:, :0], text_mask=inputs.text_mask[:, :0])
        return self._guide.predict(none)

    def sharding(self) -> ShardingPlan:
        """Return the blocks of both."""
        return ShardingPlan([*self._network.sharding().blocks, *self._guide.sharding().blocks])

    def lora_targets(self, of: Targets = "default") -> Sequence[str]:
        """Name the linear layers of the network that is guided."""
        return [f"{self.config.network.part}.{name}" for name in self._network.lora_targets(of)]
