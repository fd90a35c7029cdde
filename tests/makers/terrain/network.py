"""The network as a predictor of velocities of pictures, of which each colour is a terrain.

It was trained on `x + σ·noise`, and returns x; Karras et al. 2022, equation 7, with the boundary of Song et al. 2023.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from reelworks.models.api import PURE_NOISE, DenoiserInputs
from reelworks.models.diffusers_denoiser import DiffusersNetwork
from reelworks.models.family import FamilyConfig
from terrain.spec import LEAST_SIGMA, MOST_SIGMA, SIGMA_DATA


def denoise(module: Any, noised: Tensor, sigma: Tensor) -> Tensor:
    """Return the pictures `[B, 1, H, W]` without the noise, whose deviations are `sigma` `[B]`."""
    wide = sigma.view(-1, 1, 1, 1)
    norm, above = (wide**2 + SIGMA_DATA**2).sqrt(), wide - LEAST_SIGMA
    out: Tensor = module(noised / norm, 250 * sigma.log(), return_dict=False)[0]
    kept = SIGMA_DATA**2 / (above**2 + SIGMA_DATA**2)
    return kept * noised + SIGMA_DATA * above / norm * out


def predict(module: Any, inputs: DenoiserInputs, config: FamilyConfig) -> Tensor:
    """Return the velocity `[B, C, 1, H, W]`, which points towards the data."""
    latent = inputs.latent[:, :, 0]
    time = (inputs.time / PURE_NOISE).repeat_interleave(latent.shape[1])
    sigma = (time / (1 - time)).clamp(LEAST_SIGMA, MOST_SIGMA)
    terrain = latent.flatten(0, 1)[:, None] * (1 + sigma.view(-1, 1, 1, 1))
    x0 = denoise(module, terrain, sigma)
    # The noise is what is left, and the velocity points from it to the picture.
    velocity = x0 - (terrain - x0) / sigma.view(-1, 1, 1, 1)
    return velocity.view_as(latent)[:, :, None]


NETWORK = DiffusersNetwork(predict)
