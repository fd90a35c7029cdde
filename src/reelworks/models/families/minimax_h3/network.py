"""Call a MiniMax-H3 network."""

from __future__ import annotations

import importlib
import itertools
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from reelworks.data.loader import upload
from reelworks.models.api import PURE_NOISE, DenoiserInputs
from reelworks.models.diffusers_denoiser import DiffusersNetwork, pack, unpack
from reelworks.models.families.minimax_h3 import pictures
from reelworks.models.families.minimax_h3.pictures import VIDEO, unmarked
from reelworks.models.families.minimax_h3.spec import SOUND_CHANNELS, MiniMaxH3Config
from reelworks.models.text.modular_pipelines import load_qwen3_vl

_SOUND = 2  # kind of tokens, beside `VIDEO` and `TEXT`
_OF_PICTURE, _OF_SOUND, _CLEAN, _BESIDE = range(4)  # times of a clip
_BESIDE_TIME = 0.999  # of pictures and clips beside the clip's own frames, or later: that of the picture


def predict(module: Any, inputs: DenoiserInputs, config: MiniMaxH3Config) -> Tensor:
    """Return the velocity `[B, C, T, H, W]`, which points towards the data as the network's own does.

    A pass is for one clip: its text, its sound and its picture are one sequence, in which nothing is masked.
    """
    return predict_both(module, inputs, config)[0]


def predict_both(module: Any, inputs: DenoiserInputs, config: MiniMaxH3Config) -> tuple[Tensor, Tensor]:
    """Return the velocities of picture and sound."""
    texts, kinds = unmarked(inputs.text, inputs.text_mask)
    made = [_one(module, inputs, config, row, *each) for row, each in enumerate(zip(texts, kinds, strict=True))]
    return torch.cat([picture for picture, _ in made]), torch.cat([sound for _, sound in made])


def _one(
    module: Any, inputs: DenoiserInputs, config: MiniMaxH3Config, row: int, text: Tensor, kinds: list[int]
) -> tuple[Tensor, Tensor]:
    """Return the velocities of one clip.

    What is given has time 1, which is clean there, and so have sounds besides. Pictures and clips besides have almost
    that; texts have the picture's time.
    """
    latent_CTHW, device, K = inputs.latent[row], inputs.latent.device, SOUND_CHANNELS
    _, T, H, W = latent_CTHW.shape
    heard = latent_CTHW.new_zeros(0, config.audio_in_channels)
    N, sound_time, of_sound = 0, inputs.time, inputs.frame_mask.new_zeros(0, dtype=torch.int64)
    if (given := inputs.sound) is not None:
        N, sound_time = given.latent.shape[2], given.time
        heard = _sound_tokens(given.latent[row])
        of_sound = torch.where(given.mask[row], _OF_SOUND, _CLEAN).repeat(K)
    shown = _shown(inputs, config, row)
    layout = _layout(config, kinds, shown, (T, H, W), N)
    positions, tags, video, audio, words = (upload.to_device(each, device) for each in layout)
    tokens, beside = _tokens(latent_CTHW), [_tokens(each.latent) for each in shown if each.latent is not None]
    sounds = [each.sound for each in shown if each.sound is not None]
    count, sound_count = len(video) - len(tokens), len(audio) - len(heard)
    of_sound = torch.cat([of_sound.new_full((sound_count,), _CLEAN), of_sound])
    time, sound_time = (1 - t[row] / PURE_NOISE for t in (inputs.time, sound_time))
    of_picture = torch.where(inputs.frame_mask[row], _OF_PICTURE, _CLEAN).repeat_interleave(len(tokens) // T)
    of_video = torch.cat([of_picture.new_full((count,), _BESIDE), of_picture])
    of_texts = of_picture.new_full((len(tags),), _OF_PICTURE)
    picture, sound = module(
        torch.cat([*beside, tokens])[None],
        audio_hidden_states=torch.cat([*sounds, heard])[None],
        encoder_hidden_states=text[None],
        timestep=torch.stack([time, sound_time, torch.ones_like(time), time.clamp(min=_BESIDE_TIME)]),
        timestep_indices=of_texts.index_copy(0, audio, of_sound).index_copy(0, video, of_video),
        token_tags=tags,
        position_ids=positions,
        video_indices=video,
        audio_indices=audio,
        text_indices=words,
        return_dict=False,
    )
    velocity = unpack(picture[0, count:].unflatten(0, (T, -1)), H, W).transpose(0, 1)[None]
    if not N:
        return velocity, velocity.new_zeros(1, 0, 0, 1, 1)
    return velocity, sound[0, sound_count:].unflatten(0, (K, N)).transpose(1, 2).reshape(1, -1, N, 1, 1)


class _Shown(NamedTuple):
    """A picture, a clip with or without its sound, or a sound, which a clip has besides its own."""

    latent: Tensor | None  # `[C, T, H, W]`
    sound: Tensor | None = None  # tokens

    @property
    def kind(self) -> str:
        """Name by which the release has it."""
        if self.latent is None:
            return "audio"
        return "image" if self.latent.shape[1] == 1 and self.sound is None else "video"


def _shown(inputs: DenoiserInputs, config: MiniMaxH3Config, row: int) -> list[_Shown]:
    """Return what a clip has besides its own frames and sound."""
    if config.references:
        pairs = itertools.zip_longest(inputs.sources, inputs.source_sounds)
        return [
            _Shown(
                source[row] if source.numel() else None,
                None if sound is None or not sound.numel() else _sound_tokens(sound[row]),
            )
            for source, sound in pairs
        ]
    if not config.first_frame or inputs.latent.shape[2] == 1:
        return []
    assert inputs.first_frame is not None
    return [_Shown(inputs.first_frame[row, :, i : i + 1]) for i in range(1 + config.last_frame)]


def _sound_tokens(latent_FN11: Tensor) -> Tensor:
    """Return one channel after the other, each of which has its own features."""
    return latent_FN11.reshape(SOUND_CHANNELS, -1, latent_FN11.shape[1]).transpose(1, 2).flatten(0, 1)


def _layout(
    config: MiniMaxH3Config, kinds: list[int], shown: list[_Shown], sizes: tuple[int, int, int], sound_frames: int
) -> list[Tensor]:
    """Return positions and kinds of all tokens, and the places of those of pictures, sound and text, on the CPU."""
    steps: Any = importlib.import_module("diffusers.modular_pipelines.minimax_h3.before_denoise")
    of_texts, rest = torch.tensor(kinds, device="cpu"), (config.patch_size, SOUND_CHANNELS, _SOUND, VIDEO)
    if config.references:
        references = [SimpleNamespace(kind=each.kind, has_audio=each.sound is not None) for each in shown]
        latents: list[list[Tensor]] = [
            [each.latent[None] for each in shown if each.latent is not None],
            [each.sound for each in shown if each.sound is not None],
        ]
        build = steps.MiniMaxH3Ref2VAPrepareLayoutStep.build_ref2va_packed_sequence
        positions, *others = build(of_texts, references, *latents, *sizes, sound_frames, *rest)
    else:
        build = steps.MiniMaxH3PrepareLayoutStep.build_packed_sequence
        positions, *others = build(of_texts, *sizes, sound_frames, *rest, ("first", "last")[: len(shown)])
    return [positions.float(), *others[:4]]


def _tokens(latent_CTHW: Tensor) -> Tensor:
    return pack(latent_CTHW.transpose(0, 1)).flatten(0, 1)


NETWORK = DiffusersNetwork(
    predict,
    encode_text=dict.fromkeys(("minimax-h3", "minimax-h3-keyframes", "minimax-h3-references"), pictures.encode_text),
    predict_both=predict_both,
    load_text_parts=load_qwen3_vl,
    load_processor=pictures.load,
    no_pipeline=lambda *_: "the family has a modular pipeline only",
)
