"""Layers of STDiT2 and STDiT3: attention, MLP, and embeddings of patches, positions, numbers and captions.

Shape legend: B batch, C latent channels, D width, T frames, H W latent size, h w tokens per axis, S = h·w tokens per
frame, L text tokens, K caption width. In attention: N sequences, L positions in each, A heads, E head width, M text
tokens. Physical quantities (timestep, fps, pixels) and their sines and cosines are float32 for any dtype of the
parameters; they are cast to it afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from reelworks.core.errors import UserError
from reelworks.data.distributed.sequence import Shares
from reelworks.models.attention import folded_mask

Rotation = tuple[Tensor, Tensor]
FREQUENCIES = 256  # number of sines and cosines of a timestep or a frame rate, as in v1.2


class HeadNorm(nn.Module):
    """Root-mean-square normalisation per head, with float32 statistics (eps 1e-6, as in v1.2)."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(head_dim))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension; shape and dtype do not change."""
        return F.rms_norm(x.float(), self.weight.shape, self.weight.float(), 1e-6).to(x.dtype)


def rotate(x_NALE: Tensor, rotation: Rotation | None) -> Tensor:
    """Rotate interleaved pairs of the last dimension by the angles of `rotation` (cosines, sines), if there is one."""
    if rotation is None:
        return x_NALE
    cos, sin = rotation
    x = x_NALE.float()
    swapped = x.view(*x.shape[:-1], -1, 2).flip(-1).flatten(-2)  # one load more, where slices of pairs would be four
    turned = torch.stack([-sin, sin], dim=-1).flatten(-2)
    rotated: Tensor = x * cos.repeat_interleave(2, dim=-1) + swapped * turned
    return rotated.to(x_NALE.dtype)


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

    def forward(self, x_BSLD: Tensor, rotation: Rotation | None, shares: Shares | None = None) -> Tensor:
        """Return `[B, S, L, D]` of S sequences of each clip.

        With `shares`, L are this rank's positions, which attend to those of all ranks.
        """
        qkv = self.qkv(x_BSLD.flatten(0, 1))
        width = qkv.shape[-1] // (3 * self.num_heads)
        count = folded_mask.together(qkv, width, of_clip=x_BSLD.shape[1]) if shares is None else 1
        if count > 1:
            qkv = qkv.view(-1, count * qkv.shape[1], qkv.shape[2])
            rotation = None if rotation is None else (rotation[0].repeat(count, 1), rotation[1].repeat(count, 1))
        q_NALE, k_NALE, v_NALE = split_heads(qkv, 3, self.num_heads)
        q_NALE = self._normalize_and_rotate(q_NALE, self.q_norm, rotation)
        k_NALE = self._normalize_and_rotate(k_NALE, self.k_norm, rotation)
        if count > 1:
            attended = folded_mask.attend_apart(q_NALE, k_NALE, v_NALE, count)
        else:
            attend = F.scaled_dot_product_attention if shares is None else shares.attend
            attended = attend(q_NALE, k_NALE, v_NALE)
        out: Tensor = self.proj(attended.transpose(1, 2).flatten(2).view_as(x_BSLD))
        return out

    def _normalize_and_rotate(self, x_NALE: Tensor, norm: nn.Module, rotation: Rotation | None) -> Tensor:
        out: Tensor = norm(rotate(x_NALE, rotation)) if self.rotate_first else rotate(norm(x_NALE), rotation)
        return out


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
        per sample gives the same numbers and keeps shapes fixed. On a GPU it is folded into the heads' width.
        """
        (q_NALE,) = split_heads(self.q_linear(x_NLD), 1, self.num_heads)
        k_NAME, v_NAME = split_heads(self.kv_linear(text_NMD), 2, self.num_heads)
        out_NALE = folded_mask.attend(q_NALE, k_NAME, v_NAME, mask_N11M)
        out: Tensor = self.proj(out_NALE.transpose(1, 2).flatten(2))
        return out


class MLP(nn.Module):
    """Two linear layers with a tanh-approximated GELU in between."""

    def __init__(self, in_features: int, hidden_features: int, out_features: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(in_features, hidden_features)
        self.fc2 = nn.Linear(hidden_features, out_features)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of `out_features` in the last dimension."""
        out: Tensor = self.fc2(F.gelu(self.fc1(x), approximate="tanh"))
        return out


def sinusoid(value_B: Tensor) -> Tensor:
    """Return cosines, then sines, of decreasing frequencies: `[B]` to `[B, FREQUENCIES]` in float32."""
    half = FREQUENCIES // 2
    steps = torch.arange(half, dtype=torch.float32, device=value_B.device)
    angle_BF = value_B.float()[:, None] * torch.exp(-math.log(10_000.0) * steps / half)
    return torch.cat([angle_BF.cos(), angle_BF.sin()], dim=-1)


class ScalarEmbedding(nn.Module):
    """Embeds a number per sample: a sinusoid, then an MLP with SiLU."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(FREQUENCIES, hidden_size), nn.SiLU(), nn.Linear(hidden_size, hidden_size))

    def forward(self, value_B: Tensor) -> Tensor:
        """Embed `[B]` float32 numbers as `[B, D]`."""
        out: Tensor = self.mlp(sinusoid(value_B).to(next(self.mlp.parameters()).dtype))
        return out


class PatchProjection(nn.Conv3d):
    """A convolution whose stride equals its kernel size, computed as one matrix product.

    Weights have the convolution's shape; the matrix product is faster than a generic 3D convolution on CPUs
    and GPUs, especially with many input channels.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Project `[B, C, T, H, W]`, sizes multiples of the patch, to tokens `[B, T, S, D]`."""
        _, ph, pw = self.kernel_size
        B, C, T, H, W = input.shape
        patches = input.view(B, C, T, H // ph, ph, W // pw, pw).permute(0, 2, 3, 5, 1, 4, 6)
        patches = patches.reshape(B, T, (H // ph) * (W // pw), C * ph * pw)
        return F.linear(patches, self.weight.flatten(1), self.bias)


class PatchEmbedding(nn.Module):
    """Embeds latents as tokens; sizes that are no multiples of the patch are padded with zeros at the end."""

    def __init__(self, in_channels: int, hidden_size: int, patch_size: tuple[int, int, int]) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.proj = PatchProjection(in_channels, hidden_size, kernel_size=patch_size, stride=patch_size)

    def forward(self, latent_BCTHW: Tensor) -> Tensor:
        """Embed `[B, C, T, H, W]` as `[B, T, S, D]`."""
        _, ph, pw = self.patch_size
        H, W = latent_BCTHW.shape[-2:]
        if H % ph or W % pw:
            latent_BCTHW = F.pad(latent_BCTHW, (0, -W % pw, 0, -H % ph))
        out: Tensor = self.proj(latent_BCTHW)
        return out


class PositionEmbedding(nn.Module):
    """Sines and cosines of a token's position in its frame, in units that depend on the picture's size.

    Positions are scaled so that a picture of `input_sq_size`² pixels has unit steps and all aspect ratios
    span the same range. It has no parameters, and is a module so that its inputs can be observed with hooks.
    """

    def __init__(self, hidden_size: int, input_sq_size: int) -> None:
        super().__init__()
        self.hidden_size, self.input_sq_size = hidden_size, input_sq_size

    def forward(self, grid: tuple[int, int], height: Tensor, width: Tensor) -> Tensor:
        """Return `[S, D]` float32 for a grid of h × w tokens of a picture of `height` × `width` pixels.

        These are scalar tensors, so that the host need not wait for a device.
        """
        h, w = grid
        scale = (height.float() * width.float()).sqrt() / self.input_sq_size
        base = round(math.sqrt(h * w))
        axis_hD, axis_wD = self._axis(h, base, scale)[:, None], self._axis(w, base, scale)[None]
        # Width first, as in v1.2.
        return torch.cat([axis_wD.expand(h, -1, -1), axis_hD.expand(-1, w, -1)], dim=-1).flatten(0, 1)

    def _axis(self, count: int, base: int, scale: Tensor) -> Tensor:
        half = self.hidden_size // 2
        position = torch.arange(count, dtype=torch.float32, device=scale.device) / scale * (base / count)
        exponent = torch.arange(0, half, 2, dtype=torch.float32, device=scale.device) / half
        angle = position[:, None] * (1.0 / 10_000.0**exponent)
        return torch.cat([angle.sin(), angle.cos()], dim=-1)


class RotaryEmbedding(nn.Module):
    """Rotations of queries and keys by their frame index (Su et al. 2021), in interleaved pairs.

    `freqs` is part of the state dict: published weights hold the frequencies that they were trained with,
    rounded or not, and these take precedence over the formula.
    """

    freqs: Tensor

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.register_buffer("freqs", torch.empty(head_dim // 2))
        self.reset()

    def reset(self) -> None:
        """Set frequencies from the formula."""
        exponent = torch.arange(0, self.head_dim, 2, dtype=torch.float32, device=self.freqs.device)
        self.freqs = 1.0 / 10_000.0 ** (exponent / self.head_dim)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RotaryEmbedding:
        # A cast of the module must not round frequencies: at frame 100, bfloat16 rotates the fastest pair by
        # a quarter of a radian too far. Moves between devices are allowed.
        before = self.freqs
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.freqs.dtype != before.dtype:
            self.freqs = before.to(self.freqs.device)
        return self

    def forward(self, num_frames: int) -> tuple[Tensor, Tensor]:
        """Return cosines and sines, `[T, head_dim / 2]` each, float32."""
        angle = torch.arange(num_frames, dtype=torch.float32, device=self.freqs.device)[:, None] * self.freqs
        return angle.cos(), angle.sin()


class CaptionEmbedding(nn.Module):
    """Projects text embeddings to the network's width; `y_embedding` is the untrained empty caption."""

    y_embedding: Tensor

    def __init__(self, caption_channels: int, hidden_size: int, max_length: int) -> None:
        super().__init__()
        self.register_buffer("y_embedding", torch.empty(max_length, caption_channels))
        self.y_proj = MLP(caption_channels, hidden_size, hidden_size)

    def forward(self, text_BLK: Tensor, drop_text: Tensor | None) -> Tensor:
        """Project `[B, L, K]` to `[B, L, D]`, with the empty caption for samples whose `drop_text` is True."""
        length, longest = text_BLK.shape[1], self.y_embedding.shape[0]
        if length > longest:
            raise UserError(
                f"captions have {length} tokens, the model takes {longest}",
                code="caption-too-long",
                field="text_encoder.max_length",
                value=length,
                remedy=f"set it to {longest}",
            )
        if drop_text is not None:
            empty_LK = self.y_embedding[:length].to(text_BLK.dtype)
            text_BLK = torch.where(drop_text[:, None, None], empty_LK, text_BLK)
        out: Tensor = self.y_proj(text_BLK)
        return out


def unpatchify(patches: Tensor, grid: tuple[int, int], patch_size: tuple[int, int, int]) -> Tensor:
    """Rearrange `[B, T, S, ph·pw·C]` (C fastest) to `[B, C, T, h·ph, w·pw]`."""
    _, ph, pw = patch_size
    B, T, _, _ = patches.shape
    h, w = grid
    return patches.view(B, T, h, w, ph, pw, -1).permute(0, 6, 1, 2, 4, 3, 5).reshape(B, -1, T, h * ph, w * pw)


def tile_rows(rows: Tensor, batch_size: int) -> Tensor:
    """Return a row for each of B samples: sample b takes row b mod n, since guidance stacks batches."""
    n = rows.shape[0]
    return rows if n == batch_size else rows[torch.arange(batch_size, device=rows.device) % n]
