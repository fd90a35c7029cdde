"""Encode what a denoiser is conditioned on: companions and the clip's own first frame.

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
    """Return the last four inputs of a denoiser; see `models.api.DenoiserInputs`.

    Args:
        encoder: Encoders of the model, with the conditioning that its network takes.
        latent_BCTHW: Latents of the clips, for their shape.
        companions: `[B, T, H, W, 3]` uint8 frames by name.
        first_BHWC: uint8 first frames of the clips.
        num_frames: Frames of the clips. A picture is its own first frame, so that none is encoded for it.
    """
    inputs = {name: encoder.latents(companions[name]) for name in encoder.given}
    conditioning = encoder.conditioning
    if conditioning.first_frame is not None:
        inputs["first_frame"] = _first_frame(encoder, latent_BCTHW, first_BHWC, num_frames)
    if encoder.image_encoder is not None:
        inputs["image"] = encoder.image_encoder.encode(first_BHWC).to(encoder.device)
        if num_frames == 1:
            inputs["image"] = torch.zeros_like(inputs["image"])
    return nothing_given(latent_BCTHW) | inputs


def _first_frame(encoder: LiveEncoder, latent_BCTHW: Tensor, first_BHWC: Tensor, num_frames: int) -> Tensor:
    """Return the latents of the first frame followed by grey or zero frames, as long as the clip's."""
    first_B1HWC = first_BHWC[:, None].float()
    if encoder.conditioning.first_frame == "grey":
        grey = torch.full_like(first_B1HWC, _GREY)
        rest = grey.expand(-1, num_frames - 1, -1, -1, -1)
        return encoder.latents(torch.cat([grey if num_frames == 1 else first_B1HWC, rest], dim=1))
    if num_frames == 1:
        return torch.zeros_like(latent_BCTHW)
    alone = encoder.latents(first_B1HWC)
    return pad(alone, (0, 0, 0, 0, 0, latent_BCTHW.shape[2] - 1))


def blank(encoder: LiveEncoder, latent_BCTHW: Tensor) -> dict[str, Tensor]:
    """Return the same inputs filled with zeros, in the shapes of training."""
    inputs = {name: torch.zeros_like(latent_BCTHW) for name in encoder.given}
    if encoder.conditioning.first_frame is not None:
        inputs["first_frame"] = torch.zeros_like(latent_BCTHW)
    if (image := encoder.image_encoder) is not None:
        inputs["image"] = latent_BCTHW.new_zeros(len(latent_BCTHW), image.tokens, image.dim)
    return nothing_given(latent_BCTHW) | inputs
