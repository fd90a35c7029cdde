"""Attention and MLP of STDiT3's blocks.

Shape legend: N sequences, L positions in each, D width, A heads, E head width, M text tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

Rotation = tuple[Tensor, Tensor]


class HeadNorm(nn.Module):
    """Root-mean-square normalisation per head, with float32 statistics (eps 1e-6, as in v1.2)."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(head_dim))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension; shape and dtype do not change."""
        return F.rms_norm(x.float(), self.weight.shape, self.weight.float(), 1e-6).to(x.dtype)


def rotate(x_NALE: Tensor, rotation: Rotation) -> Tensor:
    """Rotate interleaved pairs of the last dimension by the angles of `rotation` (cosines, sines)."""
    cos, sin = rotation
    x = x_NALE.float()
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2).to(x_NALE.dtype)


def split_heads(packed: Tensor, parts: int, num_heads: int) -> tuple[Tensor, ...]:
    """Split `[N, L, parts·A·E]` into `parts` views `[N, A, L, E]`."""
    N, L, _ = packed.shape
    return packed.view(N, L, parts, num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)


class SelfAttention(nn.Module):
    """Attention within each sequence; queries and keys are normalised, then rotated.

    `rotate_first` reverses this order, as in v1.1.
    """

    def __init__(self, hidden_size: int, num_heads: int, *, qk_norm: bool, rotate_first: bool = False) -> None:
        super().__init__()
        self.num_heads, self.rotate_first = num_heads, rotate_first
        self.qkv = nn.Linear(hidden_size, 3 * hidden_size)
        head_dim = hidden_size // num_heads
        self.q_norm = HeadNorm(head_dim) if qk_norm else nn.Identity()
        self.k_norm = HeadNorm(head_dim) if qk_norm else nn.Identity()
        self.proj = nn.Linear(hidden_size, hidden_size)

    def forward(self, x_NLD: Tensor, rotation: Rotation | None) -> Tensor:
        """Attend within each of N sequences of `[N, L, D]`."""
        q_NALE, k_NALE, v_NALE = split_heads(self.qkv(x_NLD), 3, self.num_heads)
        q_NALE = self._normalize_and_rotate(q_NALE, self.q_norm, rotation)
        k_NALE = self._normalize_and_rotate(k_NALE, self.k_norm, rotation)
        out_NALE = F.scaled_dot_product_attention(q_NALE, k_NALE, v_NALE)
        out: Tensor = self.proj(out_NALE.transpose(1, 2).flatten(2))
        return out

    def _normalize_and_rotate(self, x_NALE: Tensor, norm: nn.Module, rotation: Rotation | None) -> Tensor:
        if rotation is not None and self.rotate_first:
            x_NALE = rotate(x_NALE, rotation)
        x_NALE = norm(x_NALE)
        if rotation is not None and not self.rotate_first:
            x_NALE = rotate(x_NALE, rotation)
        return x_NALE


class CrossAttention(nn.Module):
    """Attention from each sample's positions to its own caption's tokens."""

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.q_linear = nn.Linear(hidden_size, hidden_size)
        self.kv_linear = nn.Linear(hidden_size, 2 * hidden_size)
        self.proj = nn.Linear(hidden_size, hidden_size)

    def forward(self, x_NLD: Tensor, text_NMD: Tensor, mask_N11M: Tensor | None) -> Tensor:
        """Attend from `[N, L, D]` to `[N, M, D]`; `mask_N11M` is True where a token is attended to.

        v1.2 packs the unmasked tokens of all captions into one sequence with a block-diagonal bias; a mask
        per sample gives the same numbers and keeps shapes fixed.
        """
        (q_NALE,) = split_heads(self.q_linear(x_NLD), 1, self.num_heads)
        k_NAME, v_NAME = split_heads(self.kv_linear(text_NMD), 2, self.num_heads)
        out_NALE = F.scaled_dot_product_attention(q_NALE, k_NAME, v_NAME, attn_mask=mask_N11M)
        out: Tensor = self.proj(out_NALE.transpose(1, 2).flatten(2))
        return out


class MLP(nn.Module):
    """Two linear layers with a tanh-approximated GELU in between."""

    def __init__(self, in_features: int, hidden_features: int, out_features: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(in_features, hidden_features)
        self.fc2 = nn.Linear(hidden_features, out_features)

    def forward(self, x: Tensor) -> Tensor:
        """Map the last dimension."""
        out: Tensor = self.fc2(F.gelu(self.fc1(x), approximate="tanh"))
        return out
