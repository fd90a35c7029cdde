"""Call a FLUX.1 network and its pipeline."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from reelworks.models import diffusers_denoiser
from reelworks.models.api import PURE_NOISE, DenoiserInputs, TextEmbedding
from reelworks.models.diffusers_denoiser import (
    DiffusersNetwork,
    EncodedText,
    grid,
    pack,
    pooled_guidance_arguments,
    unpack,
)
from reelworks.models.families.flux.spec import FluxConfig


def predict(module: Any, inputs: DenoiserInputs, config: FluxConfig) -> Tensor:
    """Return the velocity `[B, C, 1, H, W]`; the network's own points towards the noise.

    Padding tokens of texts are attended to, as in training of the published weights. A source's tokens
    follow those of the picture, at the same positions of a second picture.
    """
    *_, H, W = inputs.latent.shape
    tokens = pack(inputs.latent[:, :, 0])
    places = grid(H // 2, W // 2, device=inputs.latent.device)
    positions, count = pad(places, (1, 0)), len(places)
    if config.companion == "control":
        assert inputs.control is not None
        tokens = torch.cat([tokens, pack(inputs.control[:, :, 0])], dim=2)
    for source in inputs.sources:
        tokens = torch.cat([tokens, pack(source[:, :, 0])], dim=1)
        positions = torch.cat([positions, pad(places, (1, 0), value=1)])
    guidance = inputs.guidance if config.guidance_embeds else None
    exact = [inputs.time] if guidance is None else [inputs.time, guidance * PURE_NOISE]
    with diffusers_denoiser.embedded(module.time_text_embed.time_proj, *exact):
        out = module(
            tokens,
            encoder_hidden_states=inputs.text,
            pooled_projections=inputs.pooled,
            timestep=inputs.time / PURE_NOISE,
            img_ids=positions,
            txt_ids=positions.new_zeros(inputs.text.shape[1], 3),
            guidance=guidance,
            return_dict=False,
        )[0]
    return -unpack(out[:, :count], H, W)[:, :, None]


def encode_text(pipeline: Any, captions: list[str], length: int, _pictures: list[Tensor]) -> EncodedText:
    """Embed captions; padding tokens are attended to."""
    tokens, pooled, _ = pipeline.encode_prompt(captions, captions, max_sequence_length=length)
    return EncodedText(tokens, pooled=pooled)


def pipeline_arguments(text: TextEmbedding, guidance_scale: float, config: FluxConfig) -> dict[str, Any]:
    """Return the arguments of a pipeline call; a network without a guidance input gets a second pass."""
    second = {} if config.guidance_embeds else {"true_cfg_scale": guidance_scale}
    return pooled_guidance_arguments(text, guidance_scale, config) | second


NETWORK = DiffusersNetwork(
    predict,
    encode_text={"flux": encode_text},
    pipeline_arguments=pipeline_arguments,
    # Without it there is no second pass, which a network with a guidance input does not get.
    word_arguments=lambda config, _length: {} if config.guidance_embeds else {"negative_prompt": ""},
)
