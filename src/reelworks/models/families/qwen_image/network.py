"""Call a Qwen-Image network and its pipeline."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, final

import torch
from PIL import Image
from torch import Tensor

from reelworks.core import optional_imports
from reelworks.models import hub
from reelworks.models.api import PURE_NOISE, DenoiserInputs, TextEmbedding
from reelworks.models.diffusers_denoiser import DiffusersNetwork, EncodedText, embedded, masked_arguments, pack, unpack
from reelworks.models.families.qwen_image.spec import QwenImageConfig
from reelworks.models.host_waits import NumbersSent, until_called

_PICTURE = "<|image_pad|>"  # occurs in the text once for each token of the picture


@final
class ImagePlaceholderTokens:
    """Prepares texts with pictures, which are those of the first text, then those of the second one, and so on."""

    def __init__(self, tokenizer: Any, pictures: Any) -> None:
        self._tokenizer, self._pictures = tokenizer, pictures

    def __call__(
        self, *, text: Sequence[str], images: Sequence[Image.Image] | None, padding: bool, return_tensors: str
    ) -> Any:
        """Return the inputs of the model."""
        pictures: dict[str, Any] = {}
        counts = iter(())
        if images:
            pictures = {**self._pictures(images=images, return_tensors=return_tensors)}
            counts = iter((pictures["image_grid_thw"].prod(dim=1) // self._pictures.merge_size**2).tolist())
        filled = [re.sub(re.escape(_PICTURE), lambda found: found[0] * next(counts), caption) for caption in text]
        words = self._tokenizer(filled, padding=padding, return_tensors=return_tensors)
        return optional_imports.transformers().BatchFeature({**words, **pictures})


def load(tokenizer: Any, source: str) -> ImagePlaceholderTokens:
    """Load the picture processor from its folder in a pipeline."""
    kind = optional_imports.transformers().Qwen2VLImageProcessorPil
    return ImagePlaceholderTokens(tokenizer, hub.pretrained(kind.from_pretrained, source, subfolder="processor"))


_PICTURE_PX = 1024 * 1024  # area to which the only source is scaled for the text encoder
_SMALL_PICTURE_PX = 384 * 384  # area to which each of several sources is scaled for it


def predict(module: Any, inputs: DenoiserInputs, config: QwenImageConfig) -> Tensor:
    """Return the velocity `[B, C, 1, H, W]`; the network's own points towards the noise.

    The tokens of the sources follow those of the edit, as further pictures.
    """
    B, _, _, H, W = inputs.latent.shape
    timestep = inputs.time / PURE_NOISE
    tokens, pictures = pack(inputs.latent[:, :, 0]), [(1, H // 2, W // 2)]
    count = tokens.shape[1]
    for source in inputs.sources:
        tokens = torch.cat([tokens, pack(source[:, :, 0])], dim=1)
        pictures = [*pictures, (1, source.shape[3] // 2, source.shape[4] // 2)]
    # With `zero_cond_t`, sources have a second time, which is zero.
    exact = torch.cat([timestep, 0 * timestep]) if config.zero_cond_t else timestep
    sent = until_called(module.transformer_blocks[0], NumbersSent())
    with embedded(module.time_text_embed.time_proj, exact), sent:
        out = module(
            tokens,
            encoder_hidden_states=inputs.text,
            encoder_hidden_states_mask=inputs.text_mask,
            timestep=timestep,
            img_shapes=[pictures] * B,
            return_dict=False,
        )[0]
    return -unpack(out[:, :count], H, W)[:, :, None]


def encode_text(pipeline: Any, captions: list[str], length: int, _pictures: list[Tensor]) -> EncodedText:
    """Embed captions."""
    return EncodedText(*pipeline.encode_prompt(captions, max_sequence_length=length))


def encode_text_and_picture(pipeline: Any, captions: list[str], length: int, pictures: list[Tensor]) -> EncodedText:
    """Embed captions together with the pictures that they refer to."""
    (source,) = pictures or [torch.zeros(len(captions), 1, 32, 32, 3, dtype=torch.uint8)]  # none to learn sizes only
    return EncodedText(*pipeline.encode_prompt(captions, _scaled(source, _PICTURE_PX), max_sequence_length=length))


def encode_text_and_pictures(pipeline: Any, captions: list[str], length: int, pictures: list[Tensor]) -> EncodedText:
    """Embed captions, each with its pictures in order."""
    scaled = [_scaled(each, _SMALL_PICTURE_PX) for each in pictures]
    rows = [
        pipeline.encode_prompt([caption], [each[i] for each in scaled] or None, max_sequence_length=length)[0][0]
        for i, caption in enumerate(captions)
    ]
    return EncodedText.from_rows(rows)


def _scaled(pictures_BTHWC: Tensor, area_px: int) -> list[Image.Image]:
    """Return pictures of about this area, with sides that are multiples of 32."""
    _, _, H, W, _ = pictures_BTHWC.shape
    height, width = (round(size * math.sqrt(area_px / (H * W)) / 32) * 32 for size in (H, W))
    return [
        Image.fromarray(p).resize((width, height), Image.Resampling.LANCZOS) for p in pictures_BTHWC[:, 0].cpu().numpy()
    ]


def pipeline_arguments(text: TextEmbedding, guidance_scale: float, config: QwenImageConfig) -> dict[str, Any]:
    """Return the arguments of a pipeline call; its guidance scale is named `true_cfg_scale`."""
    values = masked_arguments(text, guidance_scale, config, "embeds_mask")
    return values | {"true_cfg_scale": values.pop("guidance_scale")}


NETWORK = DiffusersNetwork(
    predict,
    encode_text={
        "qwen-image": encode_text,
        "qwen-image-edit": encode_text_and_picture,
        "qwen-image-edit-plus": encode_text_and_pictures,
    },
    pipeline_arguments=pipeline_arguments,
    word_arguments=lambda _config, _length: {"negative_prompt": ""},  # without which it takes no second pass
    load_processor=load,
)
