"""How an AuraFlow network is called, and its pipeline."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from reelworks.models.api import PURE_NOISE, DenoiserInputs
from reelworks.models.diffusers_denoiser import DiffusersNetwork, EncodedText, masked_arguments
from reelworks.models.family import FamilyConfig


def predict(module: Any, inputs: DenoiserInputs, config: FamilyConfig) -> Tensor:
    """Return the velocity `[B, C, 1, H, W]`; the network's own points towards the noise.

    All tokens of a text count, those behind its end too: so the network was trained.
    """
    out: Tensor = module(
        inputs.latent[:, :, 0],
        encoder_hidden_states=inputs.text,
        timestep=inputs.time / PURE_NOISE,
        return_dict=False,
    )[0]
    return -out[:, :, None]


def encode_text(pipeline: Any, captions: list[str], length: int, _pictures: list[Tensor]) -> EncodedText:
    """Embed captions; tokens of zeros fill them up, and count."""
    tokens, *_ = pipeline.encode_prompt(captions, do_classifier_free_guidance=False, max_sequence_length=length)
    return EncodedText(tokens)


NETWORK = DiffusersNetwork(predict, encode_text={"auraflow": encode_text}, pipeline_arguments=masked_arguments)
