"""Call a Wan network and its pipeline."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from reelworks.models.api import DenoiserInputs
from reelworks.models.diffusers_denoiser import DiffusersNetwork, EncodedText, guidance_arguments, token_times
from reelworks.models.families.wan.spec import MASK_CHANNELS, WanConfig

_TEXT_TOKENS = 512  # text length after which the network expects image tokens


def predict(module: Any, inputs: DenoiserInputs, config: WanConfig) -> Tensor:
    """Return the velocity `[B, C, T, H, W]`.

    Texts are padded with zeros that are attended to, as in training of the published weights. The network's
    own velocity points towards the noise.
    """
    text_BLD = torch.where(inputs.text_mask[..., None], inputs.text, inputs.text.new_zeros(()))
    *_, H, W = inputs.latent.shape
    time = token_times(inputs, H // 2 * (W // 2)) if config.expand_timesteps else inputs.time
    latent = _with_given_frames(inputs, config) if config.first_frame else inputs.latent
    if config.source:
        latent = torch.cat([latent, *inputs.sources], dim=1)
    image = None
    if config.image_dim is not None:
        assert inputs.image is not None
        image = inputs.image
        if config.pos_embed_seq_len is not None:
            # It adds positions to the tokens of both frames, and takes them in rows.
            image = image.reshape(2 * len(image), -1, image.shape[2])
        text_BLD = pad(text_BLD, (0, 0, 0, _TEXT_TOKENS - text_BLD.shape[1]))
    control = {"control_hidden_states": inputs.control} if config.conditioning.companions.control_parts else {}
    out: Tensor = module(latent, time, text_BLD, encoder_hidden_states_image=image, return_dict=False, **control)[0]
    return -out


def _with_given_frames(inputs: DenoiserInputs, config: WanConfig) -> Tensor:
    """Concatenate noise, a mask that is 1 in a clip's given frames (0 for a picture), and these frames."""
    latent = inputs.latent
    mask = latent.new_zeros(len(latent), MASK_CHANNELS, *latent.shape[2:])
    if latent.shape[2] > 1:
        mask[:, :, 0] = 1
        if config.last_frame:  # the last of those that its latent frame covers
            mask[:, -1, -1] = 1
    assert inputs.first_frame is not None
    return torch.cat([latent, mask, inputs.first_frame], dim=1)


def encode_text(pipeline: Any, captions: list[str], length: int, _pictures: list[Tensor]) -> EncodedText:
    """Embed captions; padding tokens are zeros."""
    tokens, _ = pipeline.encode_prompt(captions, None, False, max_sequence_length=length)
    return EncodedText(tokens, tokens.any(dim=-1))


NETWORK = DiffusersNetwork(
    predict,
    encode_text={"wan": encode_text},
    pipeline_arguments=guidance_arguments,
    pipeline_settings=lambda config, _scale: {"expand_timesteps": config.expand_timesteps},
)
