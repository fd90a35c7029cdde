"""Call a network of Stable Diffusion 3 and its pipeline."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from reelworks.models.api import DenoiserInputs
from reelworks.models.diffusers_denoiser import DiffusersNetwork, EncodedText, pooled_guidance_arguments
from reelworks.models.families.sd3.spec import SD3Config

_CLIP_TOKENS = 77


def predict(module: Any, inputs: DenoiserInputs, config: SD3Config) -> Tensor:
    """Return the velocity `[B, C, 1, H, W]`; the network's own points towards the noise.

    Padding tokens of texts are attended to, as in training of the published weights.
    """
    out: Tensor = module(
        inputs.latent[:, :, 0],
        encoder_hidden_states=inputs.text,
        pooled_projections=inputs.pooled,
        timestep=inputs.time,
        return_dict=False,
    )[0]
    return -out[:, :, None]


def encode_text(pipeline: Any, captions: list[str], length: int, _pictures: list[Tensor]) -> EncodedText:
    """Embed captions: the tokens of two CLIPs, followed by those of a T5."""
    tokens, _, pooled, _ = pipeline.encode_prompt(
        captions,
        captions,
        captions,
        do_classifier_free_guidance=False,
        max_sequence_length=length - pipeline.tokenizer_max_length,
    )
    return EncodedText(tokens, pooled=pooled)


NETWORK = DiffusersNetwork(
    predict,
    encode_text={"sd3": encode_text},
    pipeline_arguments=pooled_guidance_arguments,
    word_arguments=lambda _config, length: {"max_sequence_length": length - _CLIP_TOKENS},  # those of its T5
)
