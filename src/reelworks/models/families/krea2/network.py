"""Call a Krea 2 network and its pipeline."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.functional import pad

from reelworks.models.api import PURE_NOISE, DenoiserInputs, TextEmbedding
from reelworks.models.diffusers_denoiser import DiffusersNetwork, EncodedText, grid, masked_arguments, pack, unpack
from reelworks.models.families.krea2.spec import Krea2Config


def predict(module: Any, inputs: DenoiserInputs, config: Krea2Config) -> Tensor:
    """Return the velocity `[B, C, 1, H, W]`; the network's own points towards the noise.

    A text token holds the states of several layers of the text encoder. All text tokens have one position.
    """
    *_, H, W = inputs.latent.shape
    picture = pad(grid(H // 2, W // 2, device=inputs.latent.device), (1, 0))
    out: Tensor = module(
        pack(inputs.latent[:, :, 0]),
        encoder_hidden_states=_layers(inputs.text, config),
        timestep=inputs.time / PURE_NOISE,
        position_ids=pad(picture, (0, 0, inputs.text.shape[1], 0)),
        encoder_attention_mask=inputs.text_mask,
        return_dict=False,
    )[0]
    return -unpack(out, H, W)[:, :, None]


def _layers(text_BLD: Tensor, config: Krea2Config) -> Tensor:
    """Return the states of the layers that a token holds: `[B, L, layers, width]`."""
    B, L, _ = text_BLD.shape
    return text_BLD.reshape(B, L, config.num_text_layers, -1)


def encode_text(pipeline: Any, captions: list[str], length: int, _pictures: list[Tensor]) -> EncodedText:
    """Embed captions; padding lies between their words and the end of the template."""
    tokens, mask = pipeline.encode_prompt(captions, max_sequence_length=length)
    return EncodedText(tokens.flatten(2), mask)


def pipeline_arguments(text: TextEmbedding, guidance_scale: float, config: Krea2Config) -> dict[str, Any]:
    """Return the arguments of a pipeline call, whose guidance scale is lower by 1."""
    text = text._replace(tokens=_layers(text.tokens, config))
    return masked_arguments(text, guidance_scale - 1, config, "embeds_mask")


NETWORK = DiffusersNetwork(
    predict,
    encode_text={"krea2": encode_text},
    pipeline_arguments=pipeline_arguments,
    pipeline_settings=lambda config, _scale: {"is_distilled": config.distilled},
)
