"""Call a Chroma1 network and its pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from reelworks.models.api import PURE_NOISE, DenoiserInputs
from reelworks.models.diffusers_denoiser import (
    DiffusersNetwork,
    EncodedText,
    embedded,
    grid,
    masked_arguments,
    pack,
    unpack,
)
from reelworks.models.families.chroma.spec import ChromaConfig

_OTHERS = 3  # arguments of a block with one stream without the mask


def predict(module: Any, inputs: DenoiserInputs, config: ChromaConfig) -> Tensor:
    """Return the velocity `[B, C, 1, H, W]`; the network's own points towards the noise."""
    *_, H, W = inputs.latent.shape
    positions = pad(grid(H // 2, W // 2, device=inputs.latent.device), (1, 0))
    mask_BN = pad(inputs.text_mask, (0, len(positions)), value=True)
    embeds, zeros = module.time_text_embed, torch.zeros_like(inputs.time)
    # Its own zeros lie in the host's memory, and would be copied.
    with embedded(embeds.time_proj, inputs.time), embedded(embeds.guidance_proj, zeros), _masked_again(module, mask_BN):
        out: Tensor = module(
            pack(inputs.latent[:, :, 0]),
            encoder_hidden_states=inputs.text,
            timestep=inputs.time / PURE_NOISE,
            img_ids=positions,
            txt_ids=positions.new_zeros(inputs.text.shape[1], 3),
            attention_mask=mask_BN,
            return_dict=False,
        )[0]
    return -unpack(out, H, W)[:, :, None]


@contextmanager
def _masked_again(module: Any, mask_BN: Tensor) -> Iterator[None]:
    """Give the mask to all blocks that are recomputed; diffusers 0.42 gives it only to those with two streams."""
    if not module.gradient_checkpointing:
        yield
        return
    run = module._gradient_checkpointing_func

    def run_masked(block: Any, *args: Any) -> Any:
        return run(block, *args, *([mask_BN] if len(args) == _OTHERS else []))

    module._gradient_checkpointing_func = run_masked
    try:
        yield
    finally:
        module._gradient_checkpointing_func = run


def encode_text(pipeline: Any, captions: list[str], length: int, _pictures: list[Tensor]) -> EncodedText:
    """Embed captions; the first padding token is attended to."""
    tokens, _, mask, *_ = pipeline.encode_prompt(
        captions, do_classifier_free_guidance=False, max_sequence_length=length
    )
    return EncodedText(tokens, mask)


NETWORK = DiffusersNetwork(
    predict,
    encode_text={"chroma": encode_text},
    pipeline_arguments=masked_arguments,
    pipeline_note="its pipeline attends to the padding of texts, which training masks: pictures differ from the previews",
)
