"""How STDiT2 is called."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from reelworks.models.api import DenoiserInputs


def predict(module: Any, inputs: DenoiserInputs) -> Tensor:
    """Return all channels that the network returns, `[B, C or 2·C, T, H, W]`.

    The length that it is told is the number of latent frames: v1.1 encodes frame by frame.
    """
    out: Tensor = module(
        inputs.latent,
        inputs.time,
        inputs.text[:, None],
        mask=inputs.text_mask,
        x_mask=inputs.frame_mask,
        num_frames=torch.full_like(inputs.fps, inputs.latent.shape[2]),
        height=inputs.height,
        width=inputs.width,
        ar=inputs.height / inputs.width,
        fps=inputs.fps,
        drop_text=inputs.drop_text,
    )
    return out
