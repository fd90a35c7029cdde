"""Encode at the moment of use, on the training device or, captions, in CPU memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from reelworks.encoders.caption_cache import CaptionCache
from reelworks.models.api import Autoencoder, ImageEncoder, TextEmbedding, TextEncoder
from reelworks.models.family import LEARNED, Conditioning


@dataclass(frozen=True)
class LiveEncoder:
    """An autoencoder and other encoders; none is trained.

    Attributes:
        text_encoder: On a device of its own choice.
        device: Where the others are, and all that is returned.
        conditioning: How the model wants its texts, and what else it is shown.
        image_encoder: What tells the model of a clip's first frame, where something does.
        given: Names of the companions that the model is shown.
        embedded: Captions that were embedded before.
    """

    autoencoder: Autoencoder
    text_encoder: TextEncoder
    device: torch.device
    conditioning: Conditioning = LEARNED
    image_encoder: ImageEncoder | None = None
    given: tuple[str, ...] = ()
    embedded: CaptionCache = field(default_factory=CaptionCache)

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
        """Embed captions one by one, so that no embedding depends on the others of a batch; an equal one only once.

        Args:
            captions: As the model is told them.
            dropped: True where the empty caption stands in its place, unless the model has learnt its own.
            pictures_BHWC: uint8 pictures that the captions speak of. What an encoder says of one is not kept.
        """
        if self.conditioning.empty_caption == "encoded":
            captions = ["" if gone else text for text, gone in zip(captions, dropped, strict=True)]
        encode = self.text_encoder.encode
        if self.text_encoder.sees_pictures and pictures_BHWC is not None:
            rows = [
                encode([text_encoder], picture[None])
                for text, picture in zip(captions, pictures_BHWC, strict=True)
            ]
        else:
            rows = [self.embedded.get(text, partial(encode, [text_encoder])) for text in captions]
        return TextEmbedding(*(torch.cat(parts).to(self.device) for parts in zip(*rows, strict=True)))

    @torch.no_grad()
    def frames(self, latent_BCTHW: Tensor, num_frames: int) -> Tensor:
        """Decode latents to uint8 frames `[B, T, H, W, 3]`."""
        video_BCTHW = self.autoencoder.decode(latent_BCTHW.float(), num_frames)
        pixels = ((video_BCTHW.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
        return pixels.permute(0, 2, 3, 4, 1).contiguous()
