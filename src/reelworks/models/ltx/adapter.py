"""How an LTX-Video network is called."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from reelworks.models.api import DenoiserInputs
from reelworks.models.diffusers_denoiser import grid
from reelworks.models.ltx.config import LTXConfig

_STRIDE = (8, 32, 32)  # pixels per latent element of its autoencoder


def predict(module: Any, inputs: DenoiserInputs, config: LTXConfig) -> Tensor:
    """Return the velocity `[B, C, T, H, W]`; the network's own points towards the noise.

    Frames that are given have time 0.
    """
    H, W = inputs.latent.shape[3:]
    time_BT = torch.where(inputs.frame_mask, inputs.time[:, None], inputs.time.new_zeros(()))
    out: Tensor = module(
        inputs.latent.flatten(2).transpose(1, 2),
        inputs.text,
        time_BT.repeat_interleave(H * W, dim=1),
        inputs.text_mask,
        video_coords=_places(inputs),
        return_dict=False,
    )[0]
    return -out.transpose(1, 2).reshape(inputs.latent.shape)


def _places(inputs: DenoiserInputs) -> Tensor:
    """Seconds and pixels of every token, `[B, 3, N]`."""
    device, sizes = inputs.latent.device, inputs.latent.shape[2:]
    scale_B3 = torch.tensor(_STRIDE, dtype=torch.float32, device=device).repeat(len(inputs.fps), 1)
    scale_B3[:, 0] /= inputs.fps
    return grid(*sizes, device=device).T * scale_B3[..., None]
