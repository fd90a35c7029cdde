"""Encode what a denoiser is conditioned on: companions and the clip's own first frame.

Legend: B clips, C channels, T frames, H height, W width.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import avg_pool3d, pad

from reelworks.core.shape import Geometry
from reelworks.encoders.encoders import LiveEncoder
from reelworks.media.decode import BLACK
from reelworks.models.api import nothing_given

_GREY = 127.5  # 0 in [-1, 1]


def encode_conditioning(
    encoder: LiveEncoder, latent_BCTHW: Tensor, companions: Mapping[str, Tensor], first_BHWC: Tensor, num_frames: int
) -> dict[str, Tensor]:
    """Return the inputs of companions and first frames of a denoiser by name; see `models.api.given`.

    Companions are `[B, T, H, W, 3]` uint8 frames by name, and the first frames are uint8 too. A picture
    (`num_frames` is 1) is its own first frame, so that none is encoded for it.
    """
    encoded = {name: encoder.latents(companions[name]) for name in encoder.given if name in companions}
    if encoder.conditioning.first_frame == "grey" or (encoder.conditioning.first_frame is not None and num_frames > 1):
        encoded["first_frame"] = first_frame_latents(encoder, first_BHWC, num_frames)
    if encoder.image_encoder is not None and num_frames > 1:
        encoded["image"] = encoder.image_encoder.encode(first_BHWC)
    return join(encoder, latent_BCTHW, encoded)


def join(encoder: LiveEncoder, latent_BCTHW: Tensor, encoded: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the same inputs, given what was encoded for them; a picture's first frame and image are zeros."""
    inputs = {name: encoded[name].to(encoder.device) for name in encoder.given if name in encoded}
    if encoder.conditioning.first_frame is not None:
        first = encoded["first_frame"].to(encoder.device) if "first_frame" in encoded else latent_BCTHW[:, :, :0]
        inputs["first_frame"] = pad(first, (0, 0, 0, 0, 0, latent_BCTHW.shape[2] - first.shape[2]))
    if (image := encoder.image_encoder) is not None:
        blank_BNE = latent_BCTHW.new_zeros(len(latent_BCTHW), image.tokens, image.dim)
        inputs["image"] = encoded["image"].to(encoder.device) if "image" in encoded else blank_BNE
    return nothing_given(latent_BCTHW) | inputs


def first_frame_latents(encoder: LiveEncoder, first_BHWC: Tensor, num_frames: int) -> Tensor:
    """Return the latents of the first frame, alone or followed by grey frames; a picture's are those of a grey one."""
    first_B1HWC = first_BHWC[:, None].float()
    if encoder.conditioning.first_frame != "grey":
        return encoder.latents(first_B1HWC)
    grey = torch.full_like(first_B1HWC, _GREY)
    rest = grey.expand(-1, num_frames - 1, -1, -1, -1)
    return encoder.latents(torch.cat([grey if num_frames == 1 else first_B1HWC, rest], dim=1))


def blank(encoder: LiveEncoder, latent_BCTHW: Tensor) -> dict[str, Tensor]:
    """Return the same inputs filled with zeros, in the shapes of training."""
    inputs = {name: torch.zeros_like(latent_BCTHW) for name in encoder.given}
    if encoder.conditioning.first_frame is not None:
        inputs["first_frame"] = torch.zeros_like(latent_BCTHW)
    if (image := encoder.image_encoder) is not None:
        inputs["image"] = latent_BCTHW.new_zeros(len(latent_BCTHW), image.tokens, image.dim)
    return nothing_given(latent_BCTHW) | inputs


def weights(mask_BTHWC: Tensor, geometry: Geometry) -> Tensor:
    """Average a uint8 mask, white for the full loss weight, over each latent element: `[B, T', h, w]` in [0, 1].

    A latent frame covers `stride` frames; the first one of a chunk (or clip) covers those that remain.
    """
    grey_BTHW = mask_BTHWC.float().mean(dim=4)
    grey_BTHW = torch.where(grey_BTHW < BLACK, grey_BTHW.new_zeros(()), grey_BTHW) / 255
    chunk = geometry.chunk_frames or grey_BTHW.shape[1]
    return torch.cat([_pooled(part, geometry.stride) for part in torch.split(grey_BTHW, chunk, dim=1)], dim=1)


def _pooled(grey_BTHW: Tensor, stride: tuple[int, int, int]) -> Tensor:
    """Average cells; the first along time may be incomplete, and incomplete ones of height and width are cut."""
    missing = -grey_BTHW.shape[1] % stride[0]
    filled = pad(grey_BTHW, (0, 0, 0, 0, missing, 0))
    covered = pad(torch.ones_like(grey_BTHW), (0, 0, 0, 0, missing, 0))
    return avg_pool3d(filled, stride) / avg_pool3d(covered, stride)
