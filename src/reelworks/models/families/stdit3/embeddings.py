"""Embed the inputs of STDiT3: patches, positions, timesteps, frame rates and captions.

Shape legend: B batch, C latent channels, D width, T frames, H W latent size, h w tokens per axis,
S = h·w tokens per frame, L text tokens, K caption width. Physical quantities (timestep, fps,
pixels) and their sines and cosines are float32 for any dtype of the parameters; they are cast to it afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from reelworks.core.errors import UserError
from reelworks.models.families.stdit3.attention import MLP

FREQUENCIES = 256  # number of sines and cosines of a timestep or a frame rate, as in v1.2


def sinusoid(value_B: Tensor, dim: int = FREQUENCIES, max_period: float = 10_000.0) -> Tensor:
    """Return cosines, then sines, of decreasing frequencies: `[B]` to `[B, dim]` in float32."""
    half = dim // 2
    steps = torch.arange(half, dtype=torch.float32, device=value_B.device)
    angle_BF = value_B.float()[:, None] * torch.exp(-math.log(max_period) * steps / half)
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

        Args:
            grid: Tokens along height and width.
            height: Scalar tensor, pixels; a tensor, so that the host need not wait for a device.
            width: Scalar tensor, pixels.
        """
        h, w = grid
        scale = (height.float() * width.float()).sqrt() / self.input_sq_size
        base = round(math.sqrt(h * w))
        axis_hD, axis_wD = self._axis(h, base, scale), self._axis(w, base, scale)
        # Width first, as in v1.2.
        axes_hwD = torch.cat([axis_wD[None].expand(h, -1, -1), axis_hD[:, None].expand(-1, w, -1)], dim=-1)
        return axes_hwD.flatten(0, 1)

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
        frame = torch.arange(num_frames, dtype=torch.float32, device=self.freqs.device)
        angle = frame[:, None] * self.freqs
        return angle.cos(), angle.sin()


class CaptionEmbedding(nn.Module):
    """Projects text embeddings to the network's width; `y_embedding` is the untrained empty caption."""

    y_embedding: Tensor

    def __init__(self, caption_channels: int, hidden_size: int, max_length: int) -> None:
        super().__init__()
        self.register_buffer("y_embedding", torch.empty(max_length, caption_channels))
        self.y_proj = MLP(caption_channels, hidden_size, hidden_size)

    def forward(self, text_BLK: Tensor, drop_text: Tensor | None) -> Tensor:
        """Project `[B, L, K]` to `[B, L, D]`, with the empty caption for samples whose `drop_text` is True.

        Raises:
            UserError: If captions have more tokens than the empty caption.
        """
        if text_BLK.shape[1] > self.y_embedding.shape[0]:
            raise UserError(
                f"captions have {text_BLK.shape[1]} tokens, the model takes {self.y_embedding.shape[0]}",
                code="caption-too-long",
                field="text_encoder.max_length",
                value=text_BLK.shape[1],
                remedy=f"set it to {self.y_embedding.shape[0]}",
            )
        if drop_text is not None:
            empty_LK = self.y_embedding[: text_BLK.shape[1]].to(text_BLK.dtype)
            text_BLK = torch.where(drop_text[:, None, None], empty_LK, text_BLK)
        out: Tensor = self.y_proj(text_BLK)
        return out


def unpatchify(patches: Tensor, grid: tuple[int, int], patch_size: tuple[int, int, int]) -> Tensor:
    """Rearrange `[B, T, S, ph·pw·C]` (C fastest) to `[B, C, T, h·ph, w·pw]`."""
    _, ph, pw = patch_size
    B, T, _, _ = patches.shape
    h, w = grid
    x = patches.view(B, T, h, w, ph, pw, -1).permute(0, 6, 1, 2, 4, 3, 5)
    return x.reshape(B, -1, T, h * ph, w * pw)


def tile_rows(rows: Tensor, batch_size: int) -> Tensor:
    """Return a row for each of B samples: sample b takes row b mod n, since guidance stacks batches."""
    n = rows.shape[0]
    return rows if n == batch_size else rows[torch.arange(batch_size, device=rows.device) % n]
