"""Encode on the training device, at the moment of use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from reelworks.models.api import Autoencoder, ImageEncoder, TextEmbedding, TextEncoder
from reelworks.models.family import LEARNED, Conditioning


@dataclass(frozen=True)
class LiveEncoder:
    """An autoencoder and other encoders on one device; none is trained.

    Attributes:
        conditioning: How the model wants its texts, and what else it is shown.
        image_encoder: What tells the model of a clip's first frame, where something does.
        given: Names of the companions that the model is shown.
    """

    autoencoder: Autoencoder
    text_encoder: TextEncoder
    device: torch.device
    conditioning: Conditioning = LEARNED
    image_encoder: ImageEncoder | None = None
    given: tuple[str, ...] = ()

    def to(self, device: torch.device) -> LiveEncoder:
        """Move all of them."""
        return replace(
            self,
            autoencoder=self.autoencoder.to(device),
            text_encoder=self.text_encoder.to(device),
            image_encoder=None if self.image_encoder is None else self.image_encoder.to(device),
            device=device,
        )

    @torch.no_grad()
    def latents(self, frames_BTHWC: Tensor) -> Tensor:
        """Encode uint8 frames to float32 latents `[B, C, T, H, W]`.

        Frames travel as bytes and are normalised to [-1, 1] here, on the device.
        """
        video_BTHWC = frames_BTHWC.to(self.device, non_blocking=True).float() / 127.5 - 1.0
        return self.autoencoder.encode(video_BTHWC.permute(0, 4, 1, 2, 3)).float()

    @torch.no_grad()
    def texts(
        self, captions: Sequence[str], dropped: Sequence[bool], pictures_BHWC: Tensor | None = None
    ) -> TextEmbedding:
        """Embed captions, on the device.

        Args:
            captions: As the model is told them.
            dropped: True where the empty caption stands in its place, unless the model has learnt its own.
            pictures_BHWC: uint8 pictures that the captions speak of.
        """
        if self.conditioning.empty_caption == "encoded":
            captions = ["" if gone else text for text, gone in zip(captions, dropped, strict=True)]
        encoded = self.text_encoder.encode(captions, pictures_BHWC)
        return TextEmbedding(*(part.to(self.device) for part in encoded))

    @torch.no_grad()
    def frames(self, latent_BCTHW: Tensor, num_frames: int) -> Tensor:
        """Decode latents to uint8 frames `[B, T, H, W, 3]`."""
        video_BCTHW = self.autoencoder.decode(latent_BCTHW.float(), num_frames)
        pixels = ((video_BCTHW.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
        return pixels.permute(0, 2, 3, 4, 1).contiguous()
