"""Convert loss masks from pixels to a weight for every latent element.

Legend: B clips, T frames, H height, W width, in pixels for arguments and in latents for results.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import avg_pool3d, pad

from reelworks.core.shape import Geometry
from reelworks.media.masks import BLACK


def weights(mask_BTHWC: Tensor, geometry: Geometry) -> Tensor:
    """Average a mask over the pixels of each latent element.

    A latent frame covers `stride` frames; the first one of a chunk (or clip) covers those that remain.

    Args:
        mask_BTHWC: uint8 masks, white for the full loss weight.
        geometry: Geometry of the autoencoder.

    Returns:
        `[B, T', h, w]` float32 in [0, 1].
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
