"""Call a HunyuanImage 2.1 network and its pipeline.

Its texts are read twice: whole by a language model, and the quoted words, which are to be written in the picture, letter by
letter. Tokens of letters come first in a text here, and are filled up with zeros to the width of the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from reelworks.models.api import DenoiserInputs, TextEmbedding
from reelworks.models.diffusers_denoiser import (
    DiffusersNetwork,
    EncodedText,
    embedded,
    of_both,
    rounds_latents,
    with_plain_guider,
)
from reelworks.models.families.hunyuan_image21.spec import HunyuanImage21Config

_MOST_LETTERS = 128  # with which the release was trained


def letters_of(length: int) -> int:
    """Return how many of a text's tokens are those of letters; a third of a text that is shorter than the release's."""
    return min(_MOST_LETTERS, length // 3)


def predict(module: Any, inputs: DenoiserInputs, config: HunyuanImage21Config) -> Tensor:
    """Return the velocity `[B, C, 1, H, W]`; the network's own points towards the noise."""
    picture_time, text_time = module.time_guidance_embed.time_proj, module.context_embedder.time_text_embed.time_proj
    apart = _letters_apart(module, letters_of(inputs.text.shape[1]), config.text_embed_2_dim)
    with embedded(picture_time, inputs.time), embedded(text_time, inputs.time), apart:
        out: Tensor = module(
            inputs.latent[:, :, 0],
            inputs.time.to(inputs.latent.dtype),
            inputs.text,
            inputs.text_mask,
            return_dict=False,
        )[0]
    return -out[:, :, None]


@contextmanager
def _letters_apart(module: Any, count: int, width: int) -> Iterator[None]:
    """Let the network embed the first tokens of texts as letters.

    Given both apart, it would put those that count of each text before the others, and wait for their numbers. Tokens of
    texts have no positions, so that their order makes no difference.
    """
    letters: list[Tensor] = []

    def take(_refiner: Any, args: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        text, time, mask = args
        letters.append(text[:, :count, :width])
        words = mask[:, count:]
        return text[:, count:], time, words | ~words.any(dim=1, keepdim=True)  # the mean of none would be no number

    def join(_refiner: Any, _args: Any, words: Tensor) -> Tensor:
        return torch.cat([module.context_embedder_2(letters.pop()), words], dim=1)

    refiner = module.context_embedder
    with refiner.register_forward_pre_hook(take), refiner.register_forward_hook(join):
        yield


def encode_text(pipeline: Any, captions: list[str], length: int, _pictures: list[Tensor]) -> EncodedText:
    """Embed captions, and their quoted words once more letter by letter."""
    count = letters_of(length)
    # This pipeline takes the lengths nowhere else.
    pipeline.tokenizer_max_length, pipeline.tokenizer_2_max_length = length - count, count
    words, mask, letters, letters_mask = pipeline.encode_prompt(captions, batch_size=len(captions))
    letters = pad(letters, (0, words.shape[2] - letters.shape[2])).to(words.dtype)
    return EncodedText(torch.cat([letters, words], dim=1), torch.cat([letters_mask, mask], dim=1))


def pipeline_arguments(text: TextEmbedding, guidance_scale: float, config: HunyuanImage21Config) -> dict[str, Any]:
    """Return the arguments of a pipeline call."""
    count = letters_of(text.tokens.shape[1])
    return of_both(
        text,
        lambda one: {
            "prompt_embeds": one.tokens[:, count:],
            "prompt_embeds_mask": one.mask[:, count:],
            "prompt_embeds_2": one.tokens[:, :count, : config.text_embed_2_dim],
            "prompt_embeds_mask_2": one.mask[:, :count],
        },
    )


NETWORK = DiffusersNetwork(
    predict,
    encode_text={"hunyuan-image-2.1": encode_text},
    pipeline_arguments=pipeline_arguments,
    pipeline_settings=with_plain_guider,
    no_pipeline=rounds_latents,
)
