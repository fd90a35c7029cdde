"""Call the network of Stable Diffusion XL and its pipeline."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from reelworks.models.api import DenoiserInputs
from reelworks.models.diffusers_denoiser import DiffusersNetwork, EncodedText, pooled_guidance_arguments
from reelworks.models.families.sdxl.spec import SDXLConfig


def predict(module: Any, inputs: DenoiserInputs, config: SDXLConfig) -> Tensor:
    """Return the noise or v, as the objective needs it, `[B, C, 1, H, W]`.

    The six sizes that it is told are the file's, the place of the crop in it, and the picture's, as in training of the
    published weights (Podell et al. 2023, section 2.2). Padding tokens of texts are attended to, likewise.
    """
    size_B2 = torch.stack([inputs.height, inputs.width], dim=1)
    crop_B4 = pad(size_B2, (0, 2)) if inputs.crop is None else inputs.crop
    out: Tensor = module(
        inputs.latent[:, :, 0],
        inputs.time,
        inputs.text,
        added_cond_kwargs={"text_embeds": inputs.pooled, "time_ids": torch.cat([crop_B4, size_B2], dim=1)},
        return_dict=False,
    )[0]
    return out[:, :, None]


def encode_text(pipeline: Any, captions: list[str], length: int, _pictures: list[Tensor]) -> EncodedText:
    """Embed captions; an empty one as zeros if the release's config requires it."""
    tokens, _, pooled, _ = pipeline.encode_prompt(captions, do_classifier_free_guidance=False)
    if pipeline.config.force_zeros_for_empty_prompt:
        empty = torch.tensor([not caption for caption in captions], device=tokens.device)
        tokens = tokens.masked_fill(empty[:, None, None], 0)
        pooled = pooled.masked_fill(empty[:, None], 0)
    return EncodedText(tokens, pooled=pooled)


def _encode_words(encoder: Any, words_BL: Tensor) -> tuple[Tensor, Tensor | None]:
    out = encoder(words_BL, output_hidden_states=True)
    return out.hidden_states[-2], getattr(out, "text_embeds", None)


NETWORK = DiffusersNetwork(
    predict,
    encode_text={"sdxl": encode_text},
    trained_text={"sdxl": _encode_words},
    pipeline_arguments=pooled_guidance_arguments,
    pipeline_settings=lambda _config, _scale: {"add_watermarker": False},
)
