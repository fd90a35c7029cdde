"""Call an LTX-2 network and its pipeline.

Video and audio attend to each other in each block. With this turned off, the video branch computes as without
audio; one audio token is passed, since the network cannot be called with none.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from reelworks.core.errors import UserError
from reelworks.models.api import DenoiserInputs
from reelworks.models.diffusers_denoiser import DiffusersNetwork, EncodedText, token_times
from reelworks.models.families.ltx2.spec import LTX2Config


def predict(module: Any, inputs: DenoiserInputs, config: LTX2Config) -> Tensor:
    """Return the velocity `[B, C, T, H, W]`; the network's points towards the noise. Condition frames have time 0."""
    latent = inputs.latent
    B, _, T, H, W = latent.shape
    text_dim = config.caption_channels if config.use_prompt_embeddings else config.audio_cross_attention_dim
    # Bounds of every token in seconds and pixels; the network's default takes one frame rate for all clips.
    positions = module.rope.prepare_video_coords(B, T, H, W, latent.device, fps=1.0)
    positions[:, 0] /= inputs.fps[:, None, None]
    out: Tensor = module(
        hidden_states=latent.flatten(2).transpose(1, 2),
        audio_hidden_states=latent.new_zeros(B, 1, config.audio_in_channels),
        encoder_hidden_states=inputs.text,
        audio_encoder_hidden_states=inputs.text.new_zeros(B, 1, text_dim),
        timestep=token_times(inputs, H * W),
        audio_timestep=inputs.time,
        sigma=inputs.time,
        encoder_attention_mask=inputs.text_mask,
        video_coords=positions,
        audio_num_frames=1,
        isolate_modalities=True,
        use_cross_timestep=True,  # one time per clip, not per token, in the attention that is off
        return_dict=False,
    )[0]
    return -out.transpose(1, 2).reshape(latent.shape)


def encode_text(pipeline: Any, captions: list[str], length: int, _pictures: list[Tensor]) -> EncodedText:
    """Embed captions: a small network of the pipeline turns the states of all layers into tokens.

    Captions are padded with learned tokens, of whose number the length must be a multiple.
    """
    learned = pipeline.connectors.config.video_connector_num_learnable_registers
    if length % learned:
        raise UserError(
            f"captions are padded with blocks of {learned} learned tokens",
            code="text-length-not-a-multiple",
            field="text_encoder.max_length",
            value=length,
            remedy=f"use a multiple of {learned}",
        )
    states, mask, *_ = pipeline.encode_prompt(captions, None, False, max_sequence_length=length)
    tokens, _, mask = pipeline.connectors(states, mask, padding_side=pipeline.tokenizer.padding_side)
    return EncodedText(tokens, mask)


NETWORK = DiffusersNetwork(
    predict,
    encode_text={"ltx-2": encode_text, "ltx-2.3": encode_text},
    no_pipeline=lambda _module: "the family's pipeline generates audio too, which is not trained",
)
