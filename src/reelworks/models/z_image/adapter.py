"""How a Z-Image network is called."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from reelworks.models.api import PURE_NOISE, DenoiserInputs
from reelworks.models.z_image.config import ZImageConfig


def predict(module: Any, inputs: DenoiserInputs, config: ZImageConfig) -> Tensor:
    """Return the velocity `[B, C, 1, H, W]`.

    Its times run from noise, 0, to data, 1, and its velocity points towards the data. Texts come
    without what fills them up.
    """
    texts = [_kept(text, mask) for text, mask in zip(inputs.text, inputs.text_mask, strict=True)]
    out = module(list(inputs.latent), 1 - inputs.time / PURE_NOISE, texts, return_dict=False)[0]
    return torch.stack(out)


def _kept(text_LD: Tensor, mask_L: Tensor) -> Tensor:
    # Without values every token counts: only shapes are looked at then.
    return text_LD if text_LD.is_meta else text_LD[mask_L]
