"""How STDiT3 is called, and both STDiTs as the trainer sees them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

from torch import Tensor, nn

from reelworks.models.api import INPUT_ROLES, DenoiserInputs, ShardingPlan
from reelworks.models.lora import inject
from reelworks.models.lora.base_model import Base
from reelworks.models.lora.config import Targets
from reelworks.precision.contract import Contract


def predict(module: Any, inputs: DenoiserInputs) -> Tensor:
    """Return all channels that the network returns, `[B, C or 2·C, T, H, W]`."""
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
    """One STDiT network of either version.

    Attributes:
        module: The network, or what a parallel strategy or LoRA made of it.
        contract: Its dtypes.
        latent_channels: Channels of the latents that it takes.
        runs_on_meta: Shapes alone can be tried.
        base: What a LoRA in it lies on; None without one.
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
        """Return all channels that the network returns, `[B, C or 2·C, T, H, W]`."""
        return self._predict(self.module, inputs)

    def sharding(self) -> ShardingPlan:
        """Name the blocks, in order of use."""
        return self._sharding

    def lora_targets(self, of: Targets = "default") -> Sequence[str]:
        """Name the linear layers of all attentions, or all of the blocks."""
        return self._lora_targets[of]
