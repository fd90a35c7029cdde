"""How the network of Stable Diffusion XL is called."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from reelworks.models.api import DenoiserInputs
from reelworks.models.sdxl.config import SDXLConfig


def predict(module: Any, inputs: DenoiserInputs, config: SDXLConfig) -> Tensor:
    """Return what the objective asks for, `[B, C, 1, H, W]`: the noise, or a velocity.

    It is told the picture's size twice, as original and as wanted, and that nothing was cropped. All
    tokens of a text count, those behind its end too: so the network was trained.
    """
    size_B2 = torch.stack([inputs.height, inputs.width], dim=1)
    out: Tensor = module(
        inputs.latent[:, :, 0],
        inputs.time,
        inputs.text,
        added_cond_kwargs={
            "text_embeds": inputs.pooled,
            "time_ids": torch.cat([size_B2, torch.zeros_like(size_B2), size_B2], dim=1),
        },
        return_dict=False,
    )[0]
    return out[:, :, None]
