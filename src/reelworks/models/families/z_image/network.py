"""Call a Z-Image network and its pipeline."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from reelworks.models.api import PURE_NOISE, DenoiserInputs, TextEmbedding
from reelworks.models.diffusers_denoiser import DiffusersNetwork, EncodedText, unpadded, unpadded_arguments
from reelworks.models.families.z_image.spec import ZImageConfig


def predict(module: Any, inputs: DenoiserInputs, config: ZImageConfig) -> Tensor:
    """Return the velocity `[B, C, 1, H, W]`.

    Its times run from 0 (noise) to 1 (data), and its velocity points towards the data. It takes texts without
    padding.
    """
    texts = unpadded(inputs.text, inputs.text_mask)
    return torch.stack(module(list(inputs.latent), 1 - inputs.time / PURE_NOISE, texts, return_dict=False)[0])


def encode_text(pipeline: Any, captions: list[str], length: int, _pictures: list[Tensor]) -> EncodedText:
    """Embed captions, each at its own length, and pad them to the longest."""
    rows, _ = pipeline.encode_prompt(captions, do_classifier_free_guidance=False, max_sequence_length=length)
    return EncodedText.from_rows(rows)


def pipeline_arguments(text: TextEmbedding, guidance_scale: float, config: ZImageConfig) -> dict[str, Any]:
    """Return the arguments of a pipeline call, whose guidance scale is lower by 1."""
    return unpadded_arguments(text, guidance_scale - 1, config)


NETWORK = DiffusersNetwork(predict, encode_text={"z-image": encode_text}, pipeline_arguments=pipeline_arguments)
