"""The temporal half of v1.2's video autoencoder, which encodes every four frames of 2D latents as one.

Causal: an output depends on no later frame; frames before the first are 0. Source: Open-Sora v1.2,
whose state-dict keys and numbers this network reproduces; it follows MAGVIT-v2 (Yu et al. 2023).

Shape legend: B batch, C channels, T frames, H W latent size.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


@dataclass(frozen=True)
class TemporalSizes:
    """Sizes of the network; defaults are those of v1.2.

    Attributes:
        channels: Channels of the 2D latents and of the output.
        filters: Width of the outermost level.
        multipliers: Widths of the levels in units of `filters`.
        halves: Whether time is halved after a level, for all levels but the last.
        num_res_blocks: Residual blocks per level.
        num_groups: Groups of the group normalisations.
    """

    channels: int = 4
    filters: int = 128
    multipliers: tuple[int, ...] = (1, 2, 2, 4)
    halves: tuple[bool, ...] = (False, True, True)
    num_res_blocks: int = 4
    num_groups: int = 32

    @property
    def widths(self) -> list[int]:
        """Channels of each level."""
        return [self.filters * multiplier for multiplier in self.multipliers]

    @property
    def stride(self) -> int:
        """Frames per latent frame."""
        return int(2 ** sum(self.halves))


class CausalConv3d(nn.Module):
    """A convolution whose output depends on a frame and those before it."""

    def __init__(self, c_in: int, c_out: int, kernel: int, *, stride: int = 1, bias: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv3d(c_in, c_out, kernel, stride=(stride, 1, 1), bias=bias)
        side = kernel // 2
        self._padding = (side, side, side, side, kernel - stride, 0)

    def forward(self, x_BCTHW: Tensor) -> Tensor:
        """Convolve: height and width are unchanged, the number of frames is divided by the stride."""
        out: Tensor = self.conv(F.pad(x_BCTHW, self._padding))
        return out


class ResBlock(nn.Module):
    """A residual block of two convolutions."""

    def __init__(self, c_in: int, c_out: int, groups: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, c_in)
        self.conv1 = CausalConv3d(c_in, c_out, 3, bias=False)
        self.norm2 = nn.GroupNorm(groups, c_out)
        self.conv2 = CausalConv3d(c_out, c_out, 3, bias=False)
        self.conv3 = CausalConv3d(c_in, c_out, 1, bias=False) if c_in != c_out else nn.Identity()

    def forward(self, x_BCTHW: Tensor) -> Tensor:
        """Add the output of the convolutions to the input."""
        hidden = self.conv1(F.silu(self.norm1(x_BCTHW)))
        hidden = self.conv2(F.silu(self.norm2(hidden)))
        out: Tensor = hidden + self.conv3(x_BCTHW)
        return out


def _level(c_in: int, c_out: int, sizes: TemporalSizes) -> nn.ModuleList:
    widths = [c_in] + [c_out] * sizes.num_res_blocks
    return nn.ModuleList(ResBlock(a, b, sizes.num_groups) for a, b in itertools.pairwise(widths))


class Encoder(nn.Module):
    """Network from 2D latents to moments."""

    def __init__(self, sizes: TemporalSizes) -> None:
        super().__init__()
        widths = sizes.widths
        self.conv_in = CausalConv3d(sizes.channels, sizes.filters, 3, bias=False)
        before = [sizes.filters, *widths[:-1]]
        self.block_res_blocks = nn.ModuleList(_level(a, b, sizes) for a, b in zip(before, widths, strict=True))
        self.conv_blocks = nn.ModuleList(
            CausalConv3d(width, width, 3, stride=2) if half else nn.Identity()
            for width, half in zip(widths, sizes.halves, strict=False)
        )
        self.res_blocks = _level(widths[-1], widths[-1], sizes)
        self.norm1 = nn.GroupNorm(sizes.num_groups, widths[-1])
        self.conv2 = CausalConv3d(widths[-1], 2 * sizes.channels, 1)

    def forward(self, x_BCTHW: Tensor) -> Tensor:
        """Return `[B, 2·C, T/4, H, W]`."""
        x = self.conv_in(x_BCTHW)
        for i, level in enumerate(self.block_res_blocks):
            for block in level:  # type: ignore[attr-defined]
                x = block(x)
            if i < len(self.conv_blocks):
                x = self.conv_blocks[i](x)
        for block in self.res_blocks:
            x = block(x)
        out: Tensor = self.conv2(F.silu(self.norm1(x)))
        return out


class Decoder(nn.Module):
    """Network from latents to 2D latents."""

    def __init__(self, sizes: TemporalSizes) -> None:
        super().__init__()
        widths = sizes.widths
        self.conv1 = CausalConv3d(sizes.channels, widths[-1], 3)
        self.res_blocks = _level(widths[-1], widths[-1], sizes)
        before = [*widths[1:], widths[-1]]
        self.block_res_blocks = nn.ModuleList(_level(a, b, sizes) for a, b in zip(before, widths, strict=True))
        self.conv_blocks = nn.ModuleList(
            CausalConv3d(width, 2 * width, 3) if half else nn.Identity()
            for width, half in zip(widths[1:], sizes.halves, strict=True)
        )
        self.norm1 = nn.GroupNorm(sizes.num_groups, widths[0])
        self.conv_out = CausalConv3d(widths[0], sizes.channels, 3)
        self._halves = sizes.halves

    def forward(self, z_BCTHW: Tensor) -> Tensor:
        """Return `[B, C, 4·T, H, W]`."""
        x = self.conv1(z_BCTHW)
        for block in self.res_blocks:
            x = block(x)
        for i in reversed(range(len(self.block_res_blocks))):
            for block in self.block_res_blocks[i]:  # type: ignore[attr-defined]
                x = block(x)
            if i and self._halves[i - 1]:
                x = _double_time(self.conv_blocks[i - 1](x))
        out: Tensor = self.conv_out(F.silu(self.norm1(x)))
        return out


def _double_time(x_BCTHW: Tensor) -> Tensor:
    B, C, T, H, W = x_BCTHW.shape
    return x_BCTHW.view(B, C // 2, 2, T, H, W).transpose(2, 3).reshape(B, C // 2, 2 * T, H, W)


class Moments(NamedTuple):
    """Mean and log variance of the latents, `[B, C, T, H, W]` each."""

    mean: Tensor
    log_variance: Tensor


class TemporalAutoencoder(nn.Module):
    """An autoencoder from 2D latents to latents with fewer frames."""

    def __init__(self, sizes: TemporalSizes) -> None:
        super().__init__()
        self.stride = sizes.stride
        self.encoder, self.decoder = Encoder(sizes), Decoder(sizes)
        self.quant_conv = CausalConv3d(2 * sizes.channels, 2 * sizes.channels, 1)
        self.post_quant_conv = CausalConv3d(sizes.channels, sizes.channels, 1)

    def encode(self, x_BCTHW: Tensor) -> Moments:
        """Encode, after padding with zero frames at the start to a multiple of the stride."""
        missing = -x_BCTHW.shape[2] % self.stride
        moments = self.quant_conv(self.encoder(F.pad(x_BCTHW, (0, 0, 0, 0, missing, 0))))
        mean, log_variance = moments.chunk(2, dim=1)
        return Moments(mean, torch.clamp(log_variance, -30.0, 20.0))

    def decode(self, z_BCTHW: Tensor, num_frames: int) -> Tensor:
        """Decode to `[B, C, num_frames, H, W]` and drop the frames that `encode` padded with."""
        out: Tensor = self.decoder(self.post_quant_conv(z_BCTHW))
        return out[:, :, -num_frames % self.stride :]
