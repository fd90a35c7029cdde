"""How a network of Stable Diffusion 3 is called."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from reelworks.models.api import DenoiserInputs
from reelworks.models.sd3.config import SD3Config


def predict(module: Any, inputs: DenoiserInputs, config: SD3Config) -> Tensor:
    """Return the velocity `[B, C, 1, H, W]`; the network's own points towards the noise.

    All tokens of a text count, those behind its end too: so the networks were trained.
    """
    out: Tensor = module(
        inputs.latent[:, :, 0],
        encoder_hidden_states=inputs.text,
        pooled_projections=inputs.pooled,
        timestep=inputs.time,
        return_dict=False,
    )[0]
    return -out[:, :, None]
