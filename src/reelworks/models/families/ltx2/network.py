"""Call an LTX-2 network and its pipeline.

Video and audio attend to each other in each block. Without sound, this is turned off, so that the video branch computes
as without audio; one audio token is passed, since the network cannot be called with none.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from reelworks.core import machine
from reelworks.core.errors import UserError
from reelworks.models.api import DenoiserInputs
from reelworks.models.diffusers_denoiser import DiffusersNetwork, EncodedText, with_sources
from reelworks.models.families.ltx2.spec import LTX2Config
from reelworks.models.host_waits import NumbersSent


def predict(module: Any, inputs: DenoiserInputs, config: LTX2Config) -> Tensor:
    """Return the velocity `[B, C, T, H, W]`; the network's points towards the noise.

    Condition frames have time 0. So have sources, whose tokens follow those of the clip at the same positions.
    """
    if inputs.sound is not None:
        return predict_both(module, inputs, config)[0]
    latent = inputs.latent
    B = len(latent)
    text_dim = config.caption_channels if config.use_prompt_embeddings else config.audio_cross_attention_dim
    with exact_positions(module, latent.device):
        out: Tensor = module(
            **_picture(module, inputs),
            encoder_hidden_states=inputs.text[:, :, : config.text_width],
            audio_hidden_states=latent.new_zeros(B, 1, config.audio_in_channels),
            audio_encoder_hidden_states=inputs.text.new_zeros(B, 1, text_dim),
            audio_timestep=inputs.time,
            audio_num_frames=1,
            isolate_modalities=True,
            use_cross_timestep=True,  # one time per clip, not per token, in the attention that is off
        )[0]
    return _velocity(out, latent)


def predict_both(module: Any, inputs: DenoiserInputs, config: LTX2Config) -> tuple[Tensor, Tensor]:
    """Return the velocities of picture and sound. What is given, a frame or all of a modality, has time 0."""
    heard = inputs.sound
    assert heard is not None
    sound_BNF = heard.latent.flatten(2).transpose(1, 2)
    sound_time_BN = torch.where(heard.mask, heard.time[:, None], inputs.time.new_zeros(()))
    with exact_positions(module, inputs.latent.device):
        picture, sound = module(
            **_picture(module, inputs),
            encoder_hidden_states=inputs.text[:, :, : config.text_width],
            audio_hidden_states=sound_BNF,
            audio_encoder_hidden_states=inputs.text[:, :, config.text_width :],
            audio_timestep=sound_time_BN,
            audio_sigma=heard.time,
            audio_encoder_attention_mask=inputs.text_mask,
            audio_num_frames=sound_BNF.shape[1],
            # LTX-2 modulates the attention between modalities by its own times, LTX-2.3 by the other's.
            use_cross_timestep=config.cross_attn_mod,
        )
    return _velocity(picture, inputs.latent), -sound.transpose(1, 2)[..., None, None]


def _velocity(out_BNC: Tensor, latent_BCTHW: Tensor) -> Tensor:
    """Return the output for the clip's own tokens, which are the first, towards the data."""
    return -out_BNC[:, : latent_BCTHW[0, 0].numel()].transpose(1, 2).reshape(latent_BCTHW.shape)


def _picture(module: Any, inputs: DenoiserInputs) -> dict[str, Any]:
    """Return the arguments that do not depend on sound."""
    tokens, times = with_sources(inputs)
    return {
        "hidden_states": tokens,
        "timestep": times,
        "sigma": inputs.time,
        "encoder_attention_mask": inputs.text_mask,
        "video_coords": _positions(module, inputs),
        "return_dict": False,
    }


@contextmanager
def exact_positions(network: Any, device: torch.device) -> Iterator[None]:
    """Compute rotary embeddings, whose frequencies are float64, on the CPU while open, for a device without float64."""
    among = network.modules() if machine.is_apple(device) else ()
    ropes = [each for each in among if getattr(each, "double_precision", False)]
    for rope in ropes:
        rope.forward = functools.partial(_on_the_cpu, rope.forward)
    try:
        yield
    finally:
        for rope in ropes:
            del rope.forward


def _on_the_cpu(forward: Callable[..., tuple[Tensor, ...]], *args: Any, device: torch.device) -> tuple[Tensor, ...]:
    own = [each.cpu() if isinstance(each, Tensor) else each for each in args]
    return tuple(each.to(device) for each in forward(*own, device=torch.device("cpu")))


def _positions(module: Any, inputs: DenoiserInputs) -> Tensor:
    """Return bounds of every token in seconds and pixels, `[B, 3, N, 2]`; sources cover the area of the clip.

    The network's default takes one frame rate for all clips.
    """
    height, width = inputs.latent.shape[3:]
    bounds = []
    for latent in (inputs.latent, *inputs.sources):
        B, _, T, H, W = latent.shape
        with NumbersSent():
            own = module.rope.prepare_video_coords(B, T, H, W, latent.device, fps=1.0)
        own[:, 0] /= inputs.fps[:, None, None]
        own[:, 1] *= height / H
        own[:, 2] *= width / W
        bounds.append(own)
    return torch.cat(bounds, dim=2)


def encode_text(pipeline: Any, captions: list[str], length: int, _pictures: list[Tensor]) -> EncodedText:
    """Embed captions for the video branch."""
    tokens, _, mask = _embedded(pipeline, captions, length)
    return EncodedText(tokens, mask)


def encode_both(pipeline: Any, captions: list[str], length: int, _pictures: list[Tensor]) -> EncodedText:
    """Embed captions for the video branch and for the audio branch, side by side."""
    tokens, sound_tokens, mask = _embedded(pipeline, captions, length)
    return EncodedText(torch.cat([tokens, sound_tokens], dim=-1), mask)


def _embedded(pipeline: Any, captions: list[str], length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Embed captions: a small network of the pipeline turns the states of all layers into tokens for each branch.

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
    with exact_positions(pipeline.connectors, states.device):
        tokens, sound_tokens, mask = pipeline.connectors(states, mask, padding_side=pipeline.tokenizer.padding_side)
    return tokens, sound_tokens, mask


NETWORK = DiffusersNetwork(
    predict,
    encode_text={
        **dict.fromkeys(("ltx-2", "ltx-2.3", "ltx-2.5"), encode_text),
        **dict.fromkeys(("ltx-2-sound", "ltx-2.3-sound", "ltx-2.5-sound"), encode_both),
    },
    predict_both=predict_both,
    word_arguments=lambda _config, _length: None,
    no_pipeline=lambda *_: "the family's pipeline draws its own noise for the sound",
)
