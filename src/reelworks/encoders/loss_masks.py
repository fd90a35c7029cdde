"""Loss masks: from pixels to a weight for every latent element.

Legend: B clips, T frames, H height, W width; of pixels before, of latents after.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import avg_pool3d, pad

from reelworks.core.shape import Geometry
from reelworks.media.masks import BLACK


def weights(mask_BTHWC: Tensor, geometry: Geometry) -> Tensor:
    """Average a mask over what each latent element stands for.

    A latent frame stands for `stride` frames, those of a chunk's (or clip's) first one that are there.

    Args:
        mask_BTHWC: uint8, white where all counts.
        geometry: The autoencoder's.

    Returns:
        `[B, T', h, w]` float32 in [0, 1].
    """
    grey_BTHW = mask_BTHWC.float().mean(dim=4)
    grey_BTHW = torch.where(grey_BTHW < BLACK, grey_BTHW.new_zeros(()), grey_BTHW) / 255
    chunk = geometry.chunk_frames or grey_BTHW.shape[1]
    return torch.cat([_pooled(part, geometry.stride) for part in torch.split(grey_BTHW, chunk, dim=1)], dim=1)


def _pooled(grey_BTHW: Tensor, stride: tuple[int, int, int]) -> Tensor:
    """Average whole cells; the first cell along time may be only partly there, and what is left over is cut."""
    missing = -grey_BTHW.shape[1] % stride[0]
    filled = pad(grey_BTHW, (0, 0, 0, 0, missing, 0))
    there = pad(torch.ones_like(grey_BTHW), (0, 0, 0, 0, missing, 0))
    return avg_pool3d(filled, stride) / avg_pool3d(there, stride)
