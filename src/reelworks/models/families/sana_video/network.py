"""Call a SANA-Video network and its pipeline."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from reelworks.models.api import DenoiserInputs, TextEmbedding
from reelworks.models.diffusers_denoiser import DiffusersNetwork, EncodedText, embedded, masked_arguments
from reelworks.models.families.sana_video.spec import SanaVideoConfig


def predict(module: Any, inputs: DenoiserInputs, config: SanaVideoConfig) -> Tensor:
    """Return the velocity `[B, C, T, H, W]`; the network's own points towards the noise."""
    with embedded(module.time_embed.emb.time_proj, inputs.time):
        out: Tensor = module(
            inputs.latent, inputs.text, inputs.time, encoder_attention_mask=inputs.text_mask, return_dict=False
        )[0]
    return -out


def encode_text(pipeline: Any, captions: list[str], length: int, _pictures: list[Tensor]) -> EncodedText:
    """Embed captions behind the pipeline's instruction to describe them at length; an empty one stands alone, as there."""
    instruction = inspect.signature(type(pipeline).__call__).parameters["complex_human_instruction"].default
    rows = [
        pipeline.encode_prompt(
            caption,
            do_classifier_free_guidance=False,
            max_sequence_length=length,
            complex_human_instruction=instruction if caption else None,
        )[:2]
        for caption in captions
    ]
    tokens, masks = zip(*rows, strict=True)
    return EncodedText(torch.cat(tokens), torch.cat(masks))


def pipeline_arguments(text: TextEmbedding, guidance_scale: float, config: SanaVideoConfig) -> dict[str, Any]:
    """Return the arguments of a pipeline call at the asked size, and not at the nearest of the release's."""
    masked = masked_arguments(text, guidance_scale, config)
    return masked | {"negative_prompt": None, "use_resolution_binning": False}


NETWORK = DiffusersNetwork(predict, encode_text={"sana-video": encode_text}, pipeline_arguments=pipeline_arguments)
