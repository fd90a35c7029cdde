"""Embeddings and options as the pipelines of diffusers' families take them.

Row 0 of the texts is the prompt, row 1 no words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reelworks.generate.pipeline import GenerateOptions
from reelworks.models.api import TextEmbedding
from reelworks.models.family import FamilyConfig
from reelworks.models.hunyuan_video15.config import HunyuanVideo15Config

_Values = dict[str, Any]


def _guided(text: TextEmbedding, options: GenerateOptions, family: FamilyConfig) -> _Values:
    return {
        "prompt_embeds": text.tokens[:1],
        "negative_prompt_embeds": text.tokens[1:],
        "guidance_scale": options.guidance_scale,
    }


def _summarised(text: TextEmbedding, options: GenerateOptions, family: FamilyConfig) -> _Values:
    return _guided(text, options, family) | {
        "pooled_prompt_embeds": text.pooled[:1],
        "negative_pooled_prompt_embeds": text.pooled[1:],
    }


def _flux(text: TextEmbedding, options: GenerateOptions, family: FamilyConfig) -> _Values:
    values = _summarised(text, options, family)
    if family.conditioning.guidance == "embedded":
        return values
    return values | {"true_cfg_scale": values.pop("guidance_scale")}


def _flux2(text: TextEmbedding, options: GenerateOptions, family: FamilyConfig) -> _Values:
    return {"prompt_embeds": text.tokens[:1], "guidance_scale": options.guidance_scale}


def _qwen_image(text: TextEmbedding, options: GenerateOptions, family: FamilyConfig) -> _Values:
    values = _guided(text, options, family)
    return values | {
        "true_cfg_scale": values.pop("guidance_scale"),
        "prompt_embeds_mask": text.mask[:1],
        "negative_prompt_embeds_mask": text.mask[1:],
    }


def _z_image(text: TextEmbedding, options: GenerateOptions, family: FamilyConfig) -> _Values:
    prompt, none = ([tokens[mask]] for tokens, mask in zip(text.tokens, text.mask, strict=True))
    return {
        "prompt_embeds": prompt,
        "negative_prompt_embeds": none,
        "guidance_scale": options.guidance_scale,
    }


def _ltx(text: TextEmbedding, options: GenerateOptions, family: FamilyConfig) -> _Values:
    return _guided(text, options, family) | {
        "prompt_attention_mask": text.mask[:1],
        "negative_prompt_attention_mask": text.mask[1:],
        "frame_rate": options.fps,
    }


def _hunyuan_video15(text: TextEmbedding, options: GenerateOptions, family: FamilyConfig) -> _Values:
    """Text to be written in the picture is none, as in training."""
    assert isinstance(family, HunyuanVideo15Config)
    values: _Values = {}
    for row, sign in enumerate(("", "negative_")):
        values |= {
            f"{sign}prompt_embeds": text.tokens[row : row + 1],
            f"{sign}prompt_embeds_mask": text.mask[row : row + 1],
            f"{sign}prompt_embeds_2": text.tokens.new_zeros(1, 1, family.text_embed_2_dim),
            f"{sign}prompt_embeds_mask_2": text.mask.new_zeros(1, 1),
        }
    return values


# By the text encoders, whose pipelines they are.
ARGUMENTS: dict[str, Callable[[TextEmbedding, GenerateOptions, FamilyConfig], _Values]] = {
    "wan": _guided,
    "flux": _flux,
    "flux2": _flux2,
    "qwen-image": _qwen_image,
    "z-image": _z_image,
    "ltx-video": _ltx,
    "hunyuan-video-1.5": _hunyuan_video15,
    "sdxl": _summarised,
    "sd3": _summarised,
}
