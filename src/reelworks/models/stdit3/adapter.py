"""STDiT3 as the trainer sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from torch import Tensor, nn

from reelworks.models.api import INPUT_ROLES, DenoiserInputs, ShardingPlan
from reelworks.models.lora.base import Base
from reelworks.models.lora.config import Targets
from reelworks.models.stdit3 import sharding
from reelworks.models.stdit3.model import STDiT3
from reelworks.precision.contract import Contract


@final
class STDiT3Denoiser:
    """One STDiT3 network.

    Attributes:
        module: The network, or what a parallel strategy or LoRA made of it.
        contract: Its dtypes.
        latent_channels: Channels of the latents that it takes.
        runs_on_meta: Shapes alone can be tried.
        base: What a LoRA in it lies on; None without one.
    """

    runs_on_meta = True

    def __init__(self, module: STDiT3, contract: Contract) -> None:
        assert dict(contract.roles) == INPUT_ROLES
        self.module: nn.Module = module
        self.contract = contract
        self.base: Base | None = None
        self.latent_channels = module.config.in_channels
        self._sharding = sharding.plan(module)
        self._lora_targets = lora_targets(module, ("spatial_blocks.", "temporal_blocks."))

    def predict(self, inputs: DenoiserInputs) -> Tensor:
        """Return all channels that the network returns, `[B, C or 2·C, T, H, W]`."""
        out: Tensor = self.module(
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

    def sharding(self) -> ShardingPlan:
        """Name the blocks, in order of use."""
        return self._sharding

    def lora_targets(self, of: Targets = "default") -> Sequence[str]:
        """Name the linear layers of all attentions, or all of the blocks."""
        return self._lora_targets[of]


def lora_targets(module: nn.Module, blocks: tuple[str, ...]) -> dict[Targets, list[str]]:
    """Name the linear layers of all attentions, and all of the blocks, whose names begin so."""
    linear = [name for name, child in module.named_modules() if isinstance(child, nn.Linear)]
    return {
        "default": [name for name in linear if "attn" in name.split(".")[-2]],
        "blocks": [name for name in linear if name.startswith(blocks)],
    }
