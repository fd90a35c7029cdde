"""How a Qwen-Image network is called."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from reelworks.models import diffusers_denoiser
from reelworks.models.api import PURE_NOISE, DenoiserInputs
from reelworks.models.diffusers_denoiser import pack, unpack
from reelworks.models.qwen_image.config import QwenImageConfig


def predict(module: Any, inputs: DenoiserInputs, config: QwenImageConfig) -> Tensor:
    """Return the velocity `[B, C, 1, H, W]`; the network's own points towards the noise.

    The tokens of the picture that is edited stand behind those of the edit, as a second picture.
    """
    B, _, _, H, W = inputs.latent.shape
    share = inputs.time / PURE_NOISE
    tokens, pictures = pack(inputs.latent[:, :, 0]), [(1, H // 2, W // 2)]
    count = tokens.shape[1]
    if inputs.source.shape[1]:
        tokens, pictures = torch.cat([tokens, pack(inputs.source[:, :, 0])], dim=1), 2 * pictures
    with diffusers_denoiser.embedded(module.time_text_embed.time_proj, share):
        out = module(
            tokens,
            encoder_hidden_states=inputs.text,
            encoder_hidden_states_mask=inputs.text_mask,
            timestep=share,
            img_shapes=[pictures] * B,
            return_dict=False,
        )[0]
    return -unpack(out[:, :count], H, W)[:, :, None]
