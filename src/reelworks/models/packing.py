"""Latents as rows of tokens, and back.

Legend: B clips, C channels, H height, W width, N tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor


def pack(latent_BCHW: Tensor) -> Tensor:
    """Squares of 2 × 2 latent elements as tokens: `[B, H/2 · W/2, 4·C]`, rows first, channels outermost."""
    B, C, H, W = latent_BCHW.shape
    squares = latent_BCHW.reshape(B, C, H // 2, 2, W // 2, 2).permute(0, 2, 4, 1, 3, 5)
    return squares.reshape(B, H // 2 * (W // 2), 4 * C)


def unpack(tokens_BNC: Tensor, height: int, width: int) -> Tensor:
    """Undo `pack` for latents of this height and width."""
    B, _, C = tokens_BNC.shape
    squares = tokens_BNC.reshape(B, height // 2, width // 2, C // 4, 2, 2).permute(0, 3, 1, 4, 2, 5)
    return squares.reshape(B, C // 4, height, width)


def grid(*lengths: int, device: torch.device) -> Tensor:
    """Places of tokens, the last axis fastest: `[N, len(lengths)]` float32."""
    axes = (torch.arange(n, dtype=torch.float32, device=device) for n in lengths)
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).flatten(0, -2)
