"""Build, load and call STDiT2."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from reelworks.models.api import DenoiserInputs
from reelworks.models.families.stdit2.model import STDiT2
from reelworks.models.families.stdit2.spec import STDiT2Config
from reelworks.models.families.stdit3 import network


def predict(module: Any, inputs: DenoiserInputs, config: STDiT2Config) -> Tensor:
    """Return all output channels of the network, `[B, C or 2·C, T, H, W]`.

    Its `num_frames` is the number of latent frames, since v1.1 encodes frame by frame.
    """
    num_frames = torch.full_like(inputs.fps, inputs.latent.shape[2])
    return network.predict(module, inputs, config, num_frames=num_frames, ar=inputs.height / inputs.width)


NETWORK = network.STDiTNetwork(STDiT2, predict, zeroed=r".*attn_temp\.proj\.weight")
