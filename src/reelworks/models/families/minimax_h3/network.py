"""Call a MiniMax-H3 network, and encode texts as its modular pipeline does."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from reelworks.data.loader import upload
from reelworks.models.api import PURE_NOISE, DenoiserInputs
from reelworks.models.diffusers_denoiser import DiffusersNetwork, EncodedText, pack, unpack, unpadded
from reelworks.models.families.minimax_h3.spec import SOUND_CHANNELS, MiniMaxH3Config
from reelworks.models.text.modular_pipelines import TextParts, load_qwen3_vl

_STEPS = "diffusers.modular_pipelines.minimax_h3"
_VIDEO, _TEXT, _SOUND = 0, 1, 2  # kinds of tokens, which rows of the modulation are for
_OF_PICTURE, _OF_SOUND, _CLEAN = 0, 1, 2  # times of a clip
_LAYER = 50  # of the text encoder, whose states the network reads


def predict(module: Any, inputs: DenoiserInputs, config: MiniMaxH3Config) -> Tensor:
    """Return the velocity `[B, C, T, H, W]`, which points towards the data as the network's own does.

    A pass is for one clip: its text, its sound and its picture are one sequence, in which nothing is masked.
    """
    return predict_both(module, inputs, config)[0]


def predict_both(module: Any, inputs: DenoiserInputs, config: MiniMaxH3Config) -> tuple[Tensor, Tensor]:
    """Return the velocities of picture and sound."""
    texts = unpadded(inputs.text, inputs.text_mask)
    made = [_one(module, inputs, config, row, text) for row, text in enumerate(texts)]
    return torch.cat([picture for picture, _ in made]), torch.cat([sound for _, sound in made])


def _one(module: Any, inputs: DenoiserInputs, config: MiniMaxH3Config, row: int, text: Tensor) -> tuple[Tensor, Tensor]:
    """Return the velocities of one clip. What is given has time 1, which is clean there; texts have the picture's time."""
    latent_CTHW, device, K = inputs.latent[row], inputs.latent.device, SOUND_CHANNELS
    _, T, H, W = latent_CTHW.shape
    heard = latent_CTHW.new_zeros(0, config.audio_in_channels)
    N, sound_time, of_sound = 0, inputs.time, inputs.frame_mask.new_zeros(0, dtype=torch.int64)
    if (given := inputs.sound) is not None:
        N, sound_time = given.latent.shape[2], given.time
        # One channel after the other; each has its own features.
        heard = given.latent[row, :, :, 0, 0].reshape(K, -1, N).transpose(1, 2).flatten(0, 1)
        of_sound = torch.where(given.mask[row], _OF_SOUND, _CLEAN).repeat(K)
    layout: Any = importlib.import_module(f"{_STEPS}.before_denoise").MiniMaxH3PrepareLayoutStep
    tags = torch.full((len(text),), _TEXT, device="cpu")
    positions, tags, video, audio, words, _, _ = layout.build_packed_sequence(
        tags, T, H, W, N, config.patch_size, K, _SOUND, _VIDEO
    )
    tokens = pack(latent_CTHW.transpose(0, 1))
    time, sound_time = (1 - t[row] / PURE_NOISE for t in (inputs.time, sound_time))
    of_picture = torch.where(inputs.frame_mask[row], _OF_PICTURE, _CLEAN).repeat_interleave(tokens.shape[1])
    made = (positions.float(), tags, video, audio, words)
    positions, tags, video, audio, words = (upload.to_device(each, device) for each in made)
    picture, sound = module(
        tokens.flatten(0, 1)[None],
        audio_hidden_states=heard[None],
        encoder_hidden_states=text[None],
        timestep=torch.stack([time, sound_time, torch.ones_like(time)]),
        timestep_indices=torch.cat([of_picture.new_full((len(text),), _OF_PICTURE), of_sound, of_picture]),
        token_tags=tags,
        position_ids=positions,
        video_indices=video,
        audio_indices=audio,
        text_indices=words,
        return_dict=False,
    )
    velocity = unpack(picture[0].unflatten(0, tokens.shape[:2]), H, W).transpose(0, 1)[None]
    if not N:
        return velocity, velocity.new_zeros(1, 0, 0, 1, 1)
    return velocity, sound[0].unflatten(0, (K, N)).transpose(1, 2).reshape(1, -1, N, 1, 1)


def encode_text(parts: TextParts, captions: Sequence[str], length: int, _pictures: list[Tensor]) -> EncodedText:
    """Embed captions with the pipeline's own function, as they are; an empty one is a space, as no token begins it."""
    embeds: Any = importlib.import_module(f"{_STEPS}.encoders").get_qwen3vl_prompt_embeds
    kinds = SimpleNamespace(create_mm_token_type_ids=lambda rows: [[0] * len(row) for row in rows])
    rows = []
    for caption in captions:
        ids = parts.tokenizer(caption or " ", add_special_tokens=False)["input_ids"][:length]
        device, dtype = parts.text_encoder.device, parts.text_encoder.dtype
        rows.append(embeds(parts.text_encoder, kinds, ids, {}, _LAYER, device, dtype)[0])
    return EncodedText.from_rows(rows)


NETWORK = DiffusersNetwork(
    predict,
    encode_text={"minimax-h3": encode_text},
    predict_both=predict_both,
    load_text_parts=load_qwen3_vl,
    no_pipeline=lambda _module: "the family has a modular pipeline only",
)
