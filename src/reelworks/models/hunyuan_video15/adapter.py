"""How a HunyuanVideo 1.5 network is called."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from reelworks.models import diffusers_denoiser
from reelworks.models.api import DenoiserInputs
from reelworks.models.hunyuan_video15.config import HunyuanVideo15Config

_IMAGE_TOKENS = 1  # of a picture that is not given; they are masked


def predict(module: Any, inputs: DenoiserInputs, config: HunyuanVideo15Config) -> Tensor:
    """Return the velocity `[B, C, T, H, W]`; the network's own points towards the noise.

    No text to be written in the clip is given: its place is zeros and masked. So are those of a first frame, unless
    there is one; a picture has none.
    """
    latent = inputs.latent
    B = len(latent)
    first, mask = torch.zeros_like(latent), torch.zeros_like(latent[:, :1])
    image = latent.new_zeros(B, _IMAGE_TOKENS, config.image_embed_dim)
    if config.first_frame and latent.shape[2] > 1:
        first, image = inputs.first_frame, inputs.image
        mask[:, :, 0] = 1
    times = (module.time_embed.time_proj, module.context_embedder.time_text_embed.time_proj)
    with (
        diffusers_denoiser.embedded(times[0], inputs.time),
        diffusers_denoiser.embedded(times[1], inputs.time),
    ):
        out: Tensor = module(
            torch.cat([latent, first, mask], dim=1),
            inputs.time.to(latent.dtype),
            inputs.text,
            inputs.text_mask,
            encoder_hidden_states_2=latent.new_zeros(B, 1, config.text_embed_2_dim),
            encoder_attention_mask_2=inputs.text_mask.new_zeros(B, 1),
            image_embeds=image,
            return_dict=False,
        )[0]
    return -out
