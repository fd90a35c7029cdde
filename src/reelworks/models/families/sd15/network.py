"""Call the network of Stable Diffusion 1 and its pipeline."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from reelworks.models.api import DenoiserInputs
from reelworks.models.diffusers_denoiser import DiffusersNetwork, EncodedText, guidance_arguments
from reelworks.models.family import FamilyConfig


def predict(module: Any, inputs: DenoiserInputs, config: FamilyConfig) -> Tensor:
    """Return the noise or v, as the objective needs it, `[B, C, 1, H, W]`; padding tokens of texts are attended to."""
    out: Tensor = module(inputs.latent[:, :, 0], inputs.time, inputs.text, return_dict=False)[0]
    return out[:, :, None]


def encode_text(pipeline: Any, captions: list[str], length: int, _pictures: list[Tensor]) -> EncodedText:
    """Embed captions."""
    return EncodedText(pipeline.encode_prompt(captions, pipeline.device, 1, do_classifier_free_guidance=False)[0])


def encode_before_last_layer(pipeline: Any, captions: list[str], length: int, _pictures: list[Tensor]) -> EncodedText:
    """Embed captions by all layers but the last, which other programs call a clip skip of 2.

    The pipeline's own `clip_skip` looks for a module that the text encoder of transformers 5 does not have.
    """
    words, encoder = pipeline.tokenizer, pipeline.text_encoder
    tokens = words(
        captions, padding="max_length", max_length=words.model_max_length, truncation=True, return_tensors="pt"
    )
    return EncodedText(_before_last_layer(encoder, tokens.input_ids.to(pipeline.device))[0])


def _before_last_layer(encoder: Any, words_BL: Tensor) -> tuple[Tensor, None]:
    states = encoder(words_BL, output_hidden_states=True).hidden_states[-2]
    norm = next(module for name, module in encoder.named_modules() if name.endswith("final_layer_norm"))
    return norm(states), None


NETWORK = DiffusersNetwork(
    predict,
    encode_text={"sd1.5": encode_text, "sd1.5-clip-skip-2": encode_before_last_layer},
    trained_text={"sd1.5": lambda encoder, words: (encoder(words)[0], None), "sd1.5-clip-skip-2": _before_last_layer},
    pipeline_arguments=guidance_arguments,
    pipeline_settings=lambda _config, _scale: {"safety_checker": None, "feature_extractor": None},
)
