"""Build, load and call Open-Sora 2.0's network.

Legend: B clips, C latent channels, T latent frames, H height, W width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from reelworks.data.distributed.contract import Contract
from reelworks.models.api import DenoiserInputs
from reelworks.models.diffusers_denoiser import FamilyDenoiser, grid
from reelworks.models.families.opensora2.model import MMDiT
from reelworks.models.families.opensora2.spec import OpenSora2Config
from reelworks.models.recompute import Recompute
from reelworks.models.storage import weights

_CONDITIONS = "cond_in."  # layer of condition frames, which weights trained on texts alone lack


@final
@dataclass(frozen=True)
class OpenSora2Network:
    """Builds, loads and calls networks of Open-Sora 2.0; satisfies `models.api.FamilyNetwork`."""

    keeps_file_tensors = True

    def build(self, config: OpenSora2Config, *, gradient_checkpointing: Recompute = False) -> nn.Module:
        """Build a network with fresh weights from the global generator (shapes only on `meta`)."""
        return MMDiT(config, gradient_checkpointing=gradient_checkpointing)

    def load(self, module: nn.Module, config: OpenSora2Config, source: str | None, part: str | None = None) -> None:
        """Load the weights of a source; without a source, keep the fresh ones.

        Weights that were trained on texts alone get a fresh layer of condition frames, which is zeros, as upstream's
        stages for pictures begin.
        """
        if source is None:
            return
        state = weights.read(source, file=config.network.files.file)
        if config.cond_embed and not any(key.startswith(_CONDITIONS) for key in state):
            fresh = {key: value for key, value in module.state_dict().items() if key.startswith(_CONDITIONS)}
            state |= {key: torch.zeros(value.shape) for key, value in fresh.items()}
        weights.load_into(module, state, source)

    def rename_keys(self, module: Any, config: OpenSora2Config, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors unchanged: this network has the keys of the release."""
        return state

    def learns_variance(self, config: OpenSora2Config, source: str, channels: int) -> bool:
        """Return False: the network predicts a velocity alone."""
        return False

    def denoiser(self, module: nn.Module, contract: Contract, config: OpenSora2Config, channels: int) -> FamilyDenoiser:
        """Wrap a network for the trainer."""
        return FamilyDenoiser(module, contract, config, channels, predict)


def predict(module: Any, inputs: DenoiserInputs, config: OpenSora2Config) -> Tensor:
    """Return the velocity `[B, C, T, H, W]`; the network's own points towards the noise.

    Padding tokens of texts are attended to, as in training of the published weights. Condition frames are in channels
    of their own, and in the latents they are noised like the others.
    """
    _, _, T, H, W = inputs.latent.shape
    positions = grid(T, H // config.patch, W // config.patch, device=inputs.latent.device)
    condition = _pack(_condition(inputs), config.patch) if config.cond_embed else None
    tokens = _pack(inputs.latent, config.patch)
    out: Tensor = module(tokens, positions, inputs.text, inputs.time, inputs.pooled, condition)
    return -_unpack(out, T, H, W, config.patch)


def _condition(inputs: DenoiserInputs) -> Tensor:
    """Return `[B, 1 + C, T, H, W]`: 1 where a frame is given, and the latents of given frames; zeros elsewhere."""
    given = (~inputs.frame_mask)[:, None, :, None, None]
    latent = torch.zeros_like(inputs.latent) if inputs.condition is None else inputs.condition
    mask = given.to(latent.dtype).expand(-1, -1, -1, *latent.shape[3:])
    return torch.cat([mask, torch.where(given, latent, latent.new_zeros(()))], dim=1)


def _pack(x_BCTHW: Tensor, patch: int) -> Tensor:
    """Return patches as tokens, frame by frame and row by row, channels outermost in each."""
    B, C, T, H, W = x_BCTHW.shape
    patches = x_BCTHW.reshape(B, C, T, H // patch, patch, W // patch, patch).permute(0, 2, 3, 5, 1, 4, 6)
    return patches.reshape(B, -1, C * patch**2)


def _unpack(tokens: Tensor, T: int, H: int, W: int, patch: int) -> Tensor:
    """Undo `_pack`."""
    patches = tokens.view(len(tokens), T, H // patch, W // patch, -1, patch, patch)
    return patches.permute(0, 4, 1, 2, 5, 3, 6).reshape(len(tokens), -1, T, H, W)


NETWORK = OpenSora2Network()
