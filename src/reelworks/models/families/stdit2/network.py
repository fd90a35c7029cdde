"""Build, load and call STDiT2."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from reelworks.models.api import DenoiserInputs
from reelworks.models.families.stdit2.model import STDiT2
from reelworks.models.families.stdit2.spec import STDiT2Config
from reelworks.models.families.stdit3.network import STDiTNetwork


def predict(module: Any, inputs: DenoiserInputs, config: STDiT2Config) -> Tensor:
    """Return all output channels of the network, `[B, C or 2·C, T, H, W]`.

    Its `num_frames` is the number of latent frames, since v1.1 encodes frame by frame.
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


NETWORK = STDiTNetwork(STDiT2, predict, zeroed=r".*attn_temp\.proj\.weight")
