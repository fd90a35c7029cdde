"""Encode on the training device, at the moment of use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reelworks.models.api import Autoencoder, TextEmbedding, TextEncoder
from reelworks.models.family import LEARNED, Conditioning


@dataclass(frozen=True)
class LiveEncoder:
    """An autoencoder and a text encoder on one device; neither is trained.

    Attributes:
        conditioning: How the model wants its texts.
    """

    autoencoder: Autoencoder
    text_encoder: TextEncoder
    device: torch.device
    conditioning: Conditioning = LEARNED

    def to(self, device: torch.device) -> LiveEncoder:
        """Move both."""
        autoencoder, text_encoder = self.autoencoder.to(device), self.text_encoder.to(device)
        return LiveEncoder(autoencoder, text_encoder, device, self.conditioning)

    @torch.no_grad()
    def latents(self, frames_BTHWC: Tensor) -> Tensor:
        """Encode uint8 frames to float32 latents `[B, C, T, H, W]`.

        Frames travel as bytes and are normalised to [-1, 1] here, on the device.
        """
        video_BTHWC = frames_BTHWC.to(self.device, non_blocking=True).float() / 127.5 - 1.0
        return self.autoencoder.encode(video_BTHWC.permute(0, 4, 1, 2, 3)).float()

    @torch.no_grad()
    def texts(self, captions: Sequence[str], dropped: Sequence[bool]) -> TextEmbedding:
        """Embed captions, on the device.

        Args:
            captions: As the model is told them.
            dropped: True where the empty caption stands in its place, unless the model has learnt its own.
        """
        if self.conditioning.empty_caption == "encoded":
            captions = ["" if gone else text for text, gone in zip(captions, dropped, strict=True)]
        return TextEmbedding(*(part.to(self.device) for part in self.text_encoder.encode(captions)))

    @torch.no_grad()
    def frames(self, latent_BCTHW: Tensor, num_frames: int) -> Tensor:
        """Decode latents to uint8 frames `[B, T, H, W, 3]`."""
        video_BCTHW = self.autoencoder.decode(latent_BCTHW.float(), num_frames)
        pixels = ((video_BCTHW.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
        return pixels.permute(0, 2, 3, 4, 1).contiguous()
