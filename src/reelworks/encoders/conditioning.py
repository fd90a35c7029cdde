"""Conditioning of a network on a clip beside its noise: companions, and the clip's own first frame.

Legend: B clips, C channels, T frames, H height, W width.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import pad

from reelworks.encoders.encoders import LiveEncoder
from reelworks.models.api import nothing_given

_GREY = 127.5  # 0 in [-1, 1]


def encode_conditioning(
    encoder: LiveEncoder,
    latent_BCTHW: Tensor,
    companions: Mapping[str, Tensor],
    first_BHWC: Tensor,
    num_frames: int,
) -> dict[str, Tensor]:
    """Make the last four inputs of a denoiser; see `models.api.DenoiserInputs`.

    Args:
        encoder: Of the model; it knows what the network is shown.
        latent_BCTHW: Latents of the clips, for their shape.
        companions: `[B, T, H, W, 3]` uint8 frames by name.
        first_BHWC: uint8 first frames of the clips.
        num_frames: Frames of the clips. A picture would be nothing but its first frame: none is given.
    """
    shown = {name: encoder.latents(companions[name]) for name in encoder.given}
    conditioning = encoder.conditioning
    if conditioning.first_frame is not None:
        shown["first_frame"] = _first_frame(encoder, latent_BCTHW, first_BHWC, num_frames)
    if encoder.image_encoder is not None:
        shown["image"] = encoder.image_encoder.encode(first_BHWC).to(encoder.device)
        if num_frames == 1:
            shown["image"] = torch.zeros_like(shown["image"])
    return nothing_given(latent_BCTHW) | shown


def _first_frame(encoder: LiveEncoder, latent_BCTHW: Tensor, first_BHWC: Tensor, num_frames: int) -> Tensor:
    """Latents of the first frame with nothing behind it, as long as the clip."""
    first_B1HWC = first_BHWC[:, None].float()
    if encoder.conditioning.first_frame == "grey":
        grey = torch.full_like(first_B1HWC, _GREY)
        behind = grey.expand(-1, num_frames - 1, -1, -1, -1)
        return encoder.latents(torch.cat([grey if num_frames == 1 else first_B1HWC, behind], dim=1))
    if num_frames == 1:
        return torch.zeros_like(latent_BCTHW)
    alone = encoder.latents(first_B1HWC)
    return pad(alone, (0, 0, 0, 0, 0, latent_BCTHW.shape[2] - 1))


def blank(encoder: LiveEncoder, latent_BCTHW: Tensor) -> dict[str, Tensor]:
    """Return the same inputs without numbers, of the shapes that training has."""
    shown = {name: torch.zeros_like(latent_BCTHW) for name in encoder.given}
    if encoder.conditioning.first_frame is not None:
        shown["first_frame"] = torch.zeros_like(latent_BCTHW)
    if (image := encoder.image_encoder) is not None:
        shown["image"] = latent_BCTHW.new_zeros(len(latent_BCTHW), image.tokens, image.dim)
    return nothing_given(latent_BCTHW) | shown
