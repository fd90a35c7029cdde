"""Build, load and call STDiT3, and wrap both STDiTs for the trainer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

from torch import Tensor, nn

from reelworks.models.api import INPUT_ROLES, DenoiserInputs, ShardingPlan
from reelworks.models.families.stdit3 import weights
from reelworks.models.families.stdit3.model import STDiT3
from reelworks.models.families.stdit3.spec import STDiT3Config
from reelworks.models.lora import inject
from reelworks.models.lora.base_model import Base
from reelworks.models.lora.config import Targets
from reelworks.precision.contract import Contract


def predict(module: Any, inputs: DenoiserInputs) -> Tensor:
    """Return all output channels of the network, `[B, C or 2·C, T, H, W]`."""
    out: Tensor = module(
        inputs.latent,
        inputs.time,
        inputs.text[:, None],
        mask=inputs.text_mask,
        x_mask=inputs.frame_mask,
        fps=inputs.fps,
        height=inputs.height,
        width=inputs.width,
        drop_text=inputs.drop_text,
    )
    return out


@final
class STDiTDenoiser:
    """An STDiT2 or STDiT3 network as a `models.api.Denoiser`.

    Attributes:
        module: The network, possibly wrapped by a parallel strategy or adapted by a LoRA.
        contract: Dtypes of its parameters, inputs and outputs.
        latent_channels: Channels of its input latents.
        runs_on_meta: Whether it runs on the meta device.
        base: Identity of the weights below its LoRA; None without a LoRA.
    """

    runs_on_meta = True

    def __init__(
        self,
        module: nn.Module,
        contract: Contract,
        channels: int,
        predict: Callable[[Any, DenoiserInputs], Tensor],
        sharding: ShardingPlan,
    ) -> None:
        assert dict(contract.roles) == INPUT_ROLES
        self.module, self.contract, self.latent_channels = module, contract, channels
        self.base: Base | None = None
        self._predict, self._sharding = predict, sharding
        linear = inject.linear_layers(module)
        self._lora_targets: dict[Targets, list[str]] = {
            "default": [name for name in linear if "attn" in name.split(".")[-2]],
            "blocks": [name for name in linear if "blocks" in name.split(".")[0]],
        }

    def predict(self, inputs: DenoiserInputs) -> Tensor:
        """Return all output channels of the network, `[B, C or 2·C, T, H, W]`."""
        return self._predict(self.module, inputs)

    def sharding(self) -> ShardingPlan:
        """Return the blocks, in order of use."""
        return self._sharding

    def lora_targets(self, of: Targets = "default") -> Sequence[str]:
        """Return the names of the linear layers of all attentions, or all of the blocks."""
        return self._lora_targets[of]


def blocks(module: STDiT3) -> Sequence[nn.Module]:
    """Return the blocks in order of use, so that each can be gathered while the one before computes."""
    pairs = zip(module.spatial_blocks, module.temporal_blocks, strict=True)
    return [block for pair in pairs for block in pair]


@final
@dataclass(frozen=True)
class STDiTNetwork:
    """Builds, loads and calls STDiT networks of one version; satisfies `models.api.FamilyNetwork`.

    Attributes:
        network: Class of the network.
        predict: `predict(module, inputs)` calls a network.
        blocks: `blocks(module)` returns its blocks in order of use.
        fill: `fill(module, source)` loads weights, or draws fresh ones.
    """

    network: Callable[..., nn.Module]
    predict: Callable[[Any, DenoiserInputs], Tensor]
    blocks: Callable[[Any], Sequence[nn.Module]]
    fill: Callable[[Any, str | None], None]

    keeps_file_tensors = False  # the empty caption is cut, and weights that PixArt lacks are drawn

    def build(self, config: STDiT3Config, *, gradient_checkpointing: bool = False) -> nn.Module:
        """Build a network on the default device (shapes only on `meta`)."""
        return self.network(config, gradient_checkpointing=gradient_checkpointing)

    def load(
        self, module: nn.Module, config: STDiT3Config, source: str | None, part: str | None = None
    ) -> None:
        """Load weights from a folder, a file or a hub id; without a source, draw fresh ones."""
        self.fill(module, source)

    def renamed(self, module: Any, config: STDiT3Config, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors unchanged: these networks have the keys of the release."""
        return state

    def learns_variance(self, config: STDiT3Config, source: str, channels: int) -> bool:
        """Whether weights were trained to predict variance in a second half of output channels."""
        return weights.predicts_sigma(source, channels, math.prod(config.patch_size))

    def denoiser(
        self, module: nn.Module, contract: Contract, config: STDiT3Config, channels: int
    ) -> STDiTDenoiser:
        """Wrap a network for the trainer."""
        return STDiTDenoiser(module, contract, channels, self.predict, ShardingPlan(self.blocks(module)))


NETWORK = STDiTNetwork(STDiT3, predict, blocks, weights.fill)
