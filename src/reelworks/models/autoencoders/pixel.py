"""Space-to-depth: a lossless autoencoder without weights, which needs no training and no download."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor
from torch.nn.functional import pixel_shuffle, pixel_unshuffle

from reelworks.core.errors import UserError
from reelworks.data.distributed.contract import Contract, Role
from reelworks.models.api import Autoencoder
from reelworks.models.components import autoencoder_geometry, latent_channels
from reelworks.models.config import AutoencoderConfig

_F32 = torch.float32
CONTRACT = Contract(_F32, _F32, None, None, _F32, {"video": Role.CONDITION, "latent": Role.LATENT})


def squares_to_channels(video_BCTHW: Tensor, side: int) -> Tensor:
    """Turn squares of side × side pixels into channels, `[B, C·side², T, H/side, W/side]`."""
    return pixel_unshuffle(video_BCTHW.transpose(1, 2), side).transpose(1, 2).contiguous()


def channels_to_squares(latent_BCTHW: Tensor, side: int) -> Tensor:
    """Undo `squares_to_channels`."""
    return pixel_shuffle(latent_BCTHW.transpose(1, 2), side).transpose(1, 2).contiguous()


@final
class PixelAutoencoder:
    """An autoencoder that turns squares of stride × stride pixels into channels, shifted and scaled.

    Latent channel `(color · stride + row) · stride + column` holds that color of the pixel at that row and
    column of the square. Time is not compressed.
    """

    contract = CONTRACT
    encoding_networks = ()

    def __init__(self, config: AutoencoderConfig) -> None:
        self._stride = config.stride
        self._mean, self._std = config.mean, config.std
        self.geometry = autoencoder_geometry(config)
        self.latent_channels = latent_channels(config)

    def encode(self, video_BCTHW: Tensor) -> Tensor:
        """Encode `[B, 3, T, H, W]` in [-1, 1] as `[B, 3·s², T, H/s, W/s]`."""
        H, W = video_BCTHW.shape[3:]
        s = self._stride
        if H % s or W % s:
            raise UserError(
                f"frames of {W}×{H} pixels cannot be divided into squares of stride × stride",
                code="size-not-a-multiple",
                field="autoencoder.stride",
                value=s,
                remedy=f"crop or resize to multiples of {s}",
            )
        return (squares_to_channels(video_BCTHW, s) - self._mean) / self._std

    def decode(self, latent_BCTHW: Tensor, num_frames: int) -> Tensor:
        """Decode `[B, 3·s², T, h, w]` to `[B, 3, num_frames, h·s, w·s]`; values are not clamped."""
        T = latent_BCTHW.shape[2]
        assert num_frames == T, f"{T} latent frames are {T} frames, not {num_frames}"
        return channels_to_squares(latent_BCTHW, self._stride) * self._std + self._mean

    def to(self, device: torch.device) -> Autoencoder:
        """Return this object, which holds no tensors."""
        return self
