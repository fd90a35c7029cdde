"""Space-to-depth: a lossless autoencoder without weights, which needs no training and no download."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from reelworks.core.errors import UserError
from reelworks.models.api import Autoencoder
from reelworks.models.components import autoencoder_geometry, latent_channels
from reelworks.models.config import AutoencoderConfig
from reelworks.precision.contract import Contract, Role

_F32 = torch.float32
CONTRACT = Contract(_F32, _F32, None, None, _F32, {"video": Role.CONDITION, "latent": Role.LATENT})


@final
class PixelAutoencoder:
    """An autoencoder that turns squares of stride × stride pixels into channels, shifted and scaled.

    Latent channel `(color · stride + row) · stride + column` holds that color of the pixel at that row and
    column of the square. Time is not compressed.

    Attributes:
        geometry: Stride (1, s, s) for any number of frames.
        latent_channels: Channels of the latents, 3·s².
        contract: Computes and returns float32.
    """

    contract = CONTRACT

    def __init__(self, config: AutoencoderConfig) -> None:
        self._stride = config.stride
        self._mean, self._std = config.mean, config.std
        self.geometry = autoencoder_geometry(config)
        self.latent_channels = latent_channels(config)

    def encode(self, video_BCTHW: Tensor) -> Tensor:
        """Encode `[B, 3, T, H, W]` in [-1, 1] as `[B, 3·s², T, H/s, W/s]`.

        Raises:
            UserError: If height or width is not a multiple of the stride.
        """
        B, C, T, H, W = video_BCTHW.shape
        s = self._stride
        if H % s or W % s:
            raise UserError(
                f"frames of {H}×{W} pixels cannot be divided into squares of stride × stride",
                code="size-not-a-multiple",
                field="autoencoder.stride",
                value=s,
                remedy=f"crop or resize to multiples of {s}",
            )
        squares = video_BCTHW.reshape(B, C, T, H // s, s, W // s, s).permute(0, 1, 4, 6, 2, 3, 5)
        return (squares.reshape(B, C * s * s, T, H // s, W // s) - self._mean) / self._std

    def decode(self, latent_BCTHW: Tensor, num_frames: int) -> Tensor:
        """Decode `[B, 3·s², T, h, w]` to `[B, 3, num_frames, h·s, w·s]`; values are not clamped."""
        B, C, T, h, w = latent_BCTHW.shape
        assert num_frames == T, f"{T} latent frames are {T} frames, not {num_frames}"
        s = self._stride
        squares = latent_BCTHW.reshape(B, C // (s * s), s, s, T, h, w).permute(0, 1, 4, 5, 2, 6, 3)
        return squares.reshape(B, C // (s * s), T, h * s, w * s) * self._std + self._mean

    def to(self, device: torch.device) -> Autoencoder:
        """Return this object, which holds no tensors."""
        return self
