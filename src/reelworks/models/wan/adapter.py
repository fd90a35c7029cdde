"""How a Wan network is called."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from reelworks.models.api import DenoiserInputs
from reelworks.models.wan.config import WanConfig


def predict(module: Any, inputs: DenoiserInputs, config: WanConfig) -> Tensor:
    """Return the velocity `[B, C, T, H, W]`.

    Texts are filled up with zeros, which count: so the networks were trained. The network's velocity
    points towards the noise.
    """
    text_BLD = torch.where(inputs.text_mask[..., None], inputs.text, inputs.text.new_zeros(()))
    time = _by_token(inputs, config) if config.expand_timesteps else inputs.time
    out: Tensor = module(inputs.latent, time, text_BLD, return_dict=False)[0]
    return -out


def _by_token(inputs: DenoiserInputs, config: WanConfig) -> Tensor:
    """Times `[B, tokens]`: 0 for frames that are given."""
    *_, H, W = inputs.latent.shape
    _, patch_h, patch_w = config.patch_size
    time_BT = torch.where(inputs.frame_mask, inputs.time[:, None], inputs.time.new_zeros(()))
    return time_BT.repeat_interleave((H // patch_h) * (W // patch_w), dim=1)
