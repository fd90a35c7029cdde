"""Call a Qwen-Image network and its pipeline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, final

import torch
from PIL import Image
from torch import Tensor

from reelworks.models import optional_imports
from reelworks.models.api import PURE_NOISE, DenoiserInputs, TextEmbedding
from reelworks.models.diffusers_denoiser import DiffusersNetwork, EncodedText, embedded, guided, pack, unpack
from reelworks.models.families.qwen_image.spec import QwenImageConfig

_PICTURE = "<|image_pad|>"  # occurs in the text once for each token of the picture


@final
class ImagePlaceholderTokens:
    """Prepares texts with one picture each."""

    def __init__(self, tokenizer: Any, pictures: Any) -> None:
        self._tokenizer, self._pictures = tokenizer, pictures

    def __call__(
        self, *, text: Sequence[str], images: Sequence[Image.Image], padding: bool, return_tensors: str
    ) -> Any:
        """Return the inputs of the model."""
        pictures = self._pictures(images=images, return_tensors=return_tensors)
        counts = pictures["image_grid_thw"].prod(dim=1) // self._pictures.merge_size**2
        words = self._tokenizer(
            [caption.replace(_PICTURE, _PICTURE * count) for caption, count in zip(text, counts.tolist(), strict=True)],
            padding=padding,
            return_tensors=return_tensors,
        )
        return optional_imports.transformers().BatchFeature({**words, **pictures})


def load(tokenizer: Any, source: str) -> ImagePlaceholderTokens:
    """Load the picture processor from its folder in a pipeline."""
    kind = optional_imports.transformers().Qwen2VLImageProcessorPil
    return ImagePlaceholderTokens(tokenizer, kind.from_pretrained(source, subfolder="processor"))


_PICTURE_PX = 1024 * 1024  # area to which a source picture is scaled before it is encoded


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
    with embedded(module.time_text_embed.time_proj, timestep):
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
    (source,) = pictures or [torch.zeros(len(captions), 32, 32, 3, dtype=torch.uint8)]  # none to learn sizes only
    _, H, W, _ = source.shape
    scale = math.sqrt(_PICTURE_PX / (H * W))
    height, width = (round(size * scale / 32) * 32 for size in (H, W))
    images = [
        Image.fromarray(picture).resize((width, height), Image.Resampling.LANCZOS) for picture in source.cpu().numpy()
    ]
    return EncodedText(*pipeline.encode_prompt(captions, images, max_sequence_length=length))


def pipeline_arguments(
    text: TextEmbedding, guidance_scale: float, fps: float, config: QwenImageConfig
) -> dict[str, Any]:
    """Return the arguments of a pipeline call; its guidance scale is named `true_cfg_scale`."""
    values = guided(text, guidance_scale, fps, config)
    return values | {
        "true_cfg_scale": values.pop("guidance_scale"),
        "prompt_embeds_mask": text.mask[:1],
        "negative_prompt_embeds_mask": text.mask[1:],
    }


NETWORK = DiffusersNetwork(
    predict,
    encode_text={"qwen-image": encode_text, "qwen-image-edit": encode_text_and_picture},
    pipeline_arguments=pipeline_arguments,
    load_processor=load,
)
