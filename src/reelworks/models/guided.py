"""A network beside the second one of its release that guides it, for generation alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import final

from torch import Tensor, nn

from reelworks.models.adapters.config import Targets
from reelworks.models.api import DenoiserInputs, ShardingPlan
from reelworks.models.base_model import Base
from reelworks.models.diffusers_denoiser import FamilyDenoiser
from reelworks.models.expert_pair.denoiser import on_both_sides

GUIDE = "unconditional_transformer"  # its folder in a pipeline


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
