"""Call a MiniMax-H3 network, and encode texts as its modular pipeline does."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Self, final

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from reelworks.models import optional_imports
from reelworks.models.api import PURE_NOISE, DenoiserInputs
from reelworks.models.diffusers_denoiser import DiffusersNetwork, EncodedText, pack, unpack
from reelworks.models.families.minimax_h3.spec import MiniMaxH3Config

_STEPS = "diffusers.modular_pipelines.minimax_h3"
_VIDEO, _TEXT, _SOUND = 0, 1, 2  # kinds of tokens, which rows of the modulation are for
_LAYER = 50  # of the text encoder, whose states the network reads


def predict(module: Any, inputs: DenoiserInputs, config: MiniMaxH3Config) -> Tensor:
    """Return the velocity `[B, C, T, H, W]`, which points towards the data as the network's own does.

    A pass is for one clip: its text and its picture are one sequence, in which nothing is masked.
    """
    return torch.cat([_one(module, inputs, config, row) for row in range(len(inputs.latent))])


def _one(module: Any, inputs: DenoiserInputs, config: MiniMaxH3Config, row: int) -> Tensor:
    """Return the velocity of one clip. Time 1 is clean there; condition frames have it, and texts the clip's time."""
    latent_CTHW, device = inputs.latent[row], inputs.latent.device
    _, T, H, W = latent_CTHW.shape
    text = inputs.text[row]
    text = text if text.is_meta else text[inputs.text_mask[row]]
    layout: Any = importlib.import_module(f"{_STEPS}.before_denoise").MiniMaxH3PrepareLayoutStep
    tags = torch.full((len(text),), _TEXT)
    positions, tags, video, sound, words, *_ = layout.build_packed_sequence(
        tags, T, H, W, 0, config.patch_size, 2, _SOUND, _VIDEO
    )
    tokens = pack(latent_CTHW.transpose(0, 1))
    is_given = (~inputs.frame_mask[row]).long().repeat_interleave(tokens.shape[1])
    times = torch.stack([1 - inputs.time[row] / PURE_NOISE, torch.ones_like(inputs.time[row])])
    out, _ = module(
        tokens.flatten(0, 1)[None],
        audio_hidden_states=latent_CTHW.new_zeros(1, 0, config.audio_in_channels),
        encoder_hidden_states=text[None],
        timestep=times,
        timestep_indices=torch.cat([is_given.new_zeros(len(text)), is_given]),
        token_tags=tags.to(device),
        position_ids=positions.float().to(device),
        video_indices=video.to(device),
        audio_indices=sound.to(device),
        text_indices=words.to(device),
        return_dict=False,
    )
    velocity: Tensor = unpack(out[0].unflatten(0, tokens.shape[:2]), H, W)
    return velocity.transpose(0, 1)[None]


@final
class TextParts:
    """Text encoder and tokenizer of the modular pipeline, which other pipelines hold themselves."""

    def __init__(self, text_encoder: Any, tokenizer: Any) -> None:
        self.text_encoder, self.tokenizer = text_encoder, tokenizer
        self.components = {"text_encoder": text_encoder, "tokenizer": tokenizer}

    def to(self, device: torch.device) -> Self:
        """Move the text encoder."""
        self.text_encoder.to(device)
        return self


def load_text_parts(source: str, dtype: torch.dtype) -> TextParts:
    """Load the text encoder and the tokenizer from their folders; captions need no picture processor."""
    library = optional_imports.transformers()
    encoder = library.Qwen3VLForConditionalGeneration.from_pretrained(source, subfolder="text_encoder", dtype=dtype)
    return TextParts(encoder, library.AutoTokenizer.from_pretrained(source, subfolder="tokenizer"))


def encode_text(parts: TextParts, captions: Sequence[str], length: int, _pictures: list[Tensor]) -> EncodedText:
    """Embed captions with the pipeline's own function, as they are; an empty one is a space, as no token begins it."""
    embeds: Any = importlib.import_module(f"{_STEPS}.encoders").get_qwen3vl_prompt_embeds
    kinds = SimpleNamespace(create_mm_token_type_ids=lambda rows: [[0] * len(row) for row in rows])
    rows = []
    for caption in captions:
        ids = parts.tokenizer(caption or " ", add_special_tokens=False)["input_ids"][:length]
        device, dtype = parts.text_encoder.device, parts.text_encoder.dtype
        rows.append(embeds(parts.text_encoder, kinds, ids, {}, _LAYER, device, dtype)[0])
    masks = [row.new_ones(len(row), dtype=torch.bool) for row in rows]
    return EncodedText(pad_sequence(rows, batch_first=True), pad_sequence(masks, batch_first=True))


NETWORK = DiffusersNetwork(
    predict,
    encode_text={"minimax-h3": encode_text},
    load_text_parts=load_text_parts,
    no_pipeline=lambda _module: "the family has a modular pipeline only",
)
