"""Call a FLUX.2 network and its pipeline."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from reelworks.models.api import PURE_NOISE, DenoiserInputs
from reelworks.models.diffusers_denoiser import DiffusersNetwork, EncodedText, embedded, grid, guidance_arguments
from reelworks.models.families.flux2.spec import Flux2Config

_SOURCE = 10  # index of the first source on the picture axis, and distance to the next one


def predict(module: Any, inputs: DenoiserInputs, config: Flux2Config) -> Tensor:
    """Return the velocity `[B, C, 1, H, W]`; the network's own points towards the noise.

    Positions have four axes: picture, row, column and word. The tokens of sources follow those of the
    picture.
    """
    *_, H, W = inputs.latent.shape
    device = inputs.latent.device
    tokens, positions = inputs.latent.flatten(2).transpose(1, 2), pad(grid(H, W, device=device), (1, 1))
    count = len(positions)
    for number, source in enumerate(inputs.sources, start=1):
        tokens = torch.cat([tokens, source.flatten(2).transpose(1, 2)], dim=1)
        own = pad(pad(grid(*source.shape[3:], device=device), (0, 1)), (1, 0), value=number * _SOURCE)
        positions = torch.cat([positions, own])
    guidance = inputs.guidance if config.guidance_embeds else None
    exact = [inputs.time] if guidance is None else [inputs.time, guidance * PURE_NOISE]
    with embedded(module.time_guidance_embed.time_proj, *exact):
        out: Tensor = module(
            tokens,
            encoder_hidden_states=inputs.text,
            timestep=inputs.time / PURE_NOISE,
            # With a dimension for the clips, by which diffusers' plan for shared tokens knows them.
            img_ids=positions[None],
            txt_ids=pad(grid(inputs.text.shape[1], device=device), (3, 0))[None],
            guidance=guidance,
            return_dict=False,
        )[0]
    return -out[:, :count].transpose(1, 2).reshape(inputs.latent.shape)


def encode_text(pipeline: Any, captions: list[str], length: int, _pictures: list[Tensor]) -> EncodedText:
    """Embed captions; padding tokens are attended to."""
    return EncodedText(pipeline.encode_prompt(captions, max_sequence_length=length)[0])


NETWORK = DiffusersNetwork(
    predict,
    encode_text=dict.fromkeys(("flux2", "flux2-klein-4b", "flux2-klein-9b"), encode_text),
    pipeline_arguments=guidance_arguments,  # whose second text that of networks with a guidance input does not take
)
