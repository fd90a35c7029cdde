"""The network of Open-Sora's Video DC-AE, with upstream's state-dict keys so that its weights load.

Source: Open-Sora 2.0 (branch `main`), which extends the autoencoder for pictures DC-AE (Chen et al. 2024) to clips. It is
no posterior, but one latent for each clip. Convolutions see as many frames after a frame as before it, and beyond the ends
frames and pixels are 0. Time is halved twice and space five times, and a picture's only frame is kept.

Around each halving and doubling, a path without weights carries all values: places become channels, of which groups are
averaged, and back, with values repeated. Inner stages have linear attention among all places (EfficientViT, Cai et al. 2023).

Shape legend: B batch, C channels, T frames, H height, W width; A heads, E head width, L places.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

_NORM_EPS = 1e-5
_ATTENTION_EPS = 1e-15
_HEAD_DIM = 32
_EXPANSION = 4  # width of a gated layer in units of its block's
_NEIGHBOURS = 5  # side of the second scale of queries, keys and values
_HALVES_TIME = (False, False, False, True, True)  # whether time is halved after a stage; not after the last
_CONVOLUTIONAL_STAGES = 3  # the outer ones; the others have attention

Shortcut = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class VideoDCSizes:
    """Sizes of the network; defaults are those of the published F32T4C128."""

    widths: tuple[int, ...] = (128, 256, 512, 512, 1024, 1024)  # channels of the stages, the outermost first
    encoder_depths: tuple[int, ...] = (2, 2, 2, 3, 3, 3)  # blocks of each stage
    decoder_depths: tuple[int, ...] = (3, 3, 3, 3, 3, 3)
    latent_channels: int = 128


PUBLISHED = VideoDCSizes()


class VideoDCNorm(nn.Module):
    """Root-mean-square normalisation over channels, with float32 statistics."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x_BCTHW: Tensor) -> Tensor:
        """Normalise each place; shape and dtype do not change."""
        exact = x_BCTHW.float()
        normal = exact * torch.rsqrt(exact.square().mean(dim=1, keepdim=True) + _NORM_EPS)
        weight, bias = (each.view(-1, 1, 1, 1) for each in (self.weight, self.bias))
        return torch.addcmul(bias, normal.to(x_BCTHW.dtype), weight)


def named(**layers: nn.Module) -> nn.Sequential:
    """Return layers one after the other, under upstream's names."""
    return nn.Sequential(OrderedDict(layers))


def conv(
    c_in: int,
    c_out: int,
    kernel: int = 3,
    *,
    stride: tuple[int, int, int] = (1, 1, 1),
    groups: int = 1,
    bias: bool = True,
    norm: bool = False,
    activation: bool = False,
) -> nn.Sequential:
    """Return a convolution over time and space, padded with zeros, then a norm and an activation if it has them.

    Sizes are divided by the stride and rounded up.
    """
    layers: dict[str, nn.Module] = {
        "conv": nn.Conv3d(c_in, c_out, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=bias)
    }
    if norm:
        layers["norm"] = VideoDCNorm(c_out)
    if activation:
        layers["act"] = nn.SiLU()
    return named(**layers)


class Residual(nn.Module):
    """A layer beside a path without weights, by default its input."""

    def __init__(self, main: nn.Module, shortcut: Shortcut | None = None) -> None:
        super().__init__()
        self.main, self._shortcut = main, shortcut

    def forward(self, x_BCTHW: Tensor) -> Tensor:
        """Add the output of the layer and that of the path."""
        out: Tensor = self.main(x_BCTHW) + (x_BCTHW if self._shortcut is None else self._shortcut(x_BCTHW))
        return out


def conv_block(width: int) -> nn.Sequential:
    """Return two convolutions."""
    return named(conv1=conv(width, width, activation=True), conv2=conv(width, width, bias=False, norm=True))


class LinearAttention(nn.Module):
    """Attention with weights relu(q) · relu(k) at two scales, whose cost is linear in the number of places."""

    def __init__(self, width: int) -> None:
        super().__init__()
        total, heads = 3 * width, width // _HEAD_DIM
        self.qkv = conv(width, total, 1, bias=False)
        neighbours = nn.Conv3d(total, total, _NEIGHBOURS, padding=_NEIGHBOURS // 2, groups=total, bias=False)
        self.aggreg = nn.ModuleList(
            [nn.Sequential(neighbours, nn.Conv3d(total, total, 1, groups=3 * heads, bias=False))]
        )
        self.proj = conv(2 * width, width, 1, bias=False, norm=True)

    def forward(self, x_BCTHW: Tensor) -> Tensor:
        """Return the shape that was given; sums over places are float32."""
        qkv = self.qkv(x_BCTHW)
        scales = torch.cat([qkv, *(scale(qkv) for scale in self.aggreg)], dim=1)
        q_BAEL, k_BAEL, v_BAEL = (
            scales.float().view(len(scales), -1, 3 * _HEAD_DIM, scales[0, 0].numel()).chunk(3, dim=2)
        )
        q_BAEL, k_BAEL = F.relu(q_BAEL), F.relu(k_BAEL)
        attended = (v_BAEL @ k_BAEL.transpose(2, 3)) @ q_BAEL
        weight = k_BAEL.sum(dim=3, keepdim=True).transpose(2, 3) @ q_BAEL
        out: Tensor = (attended / (weight + _ATTENTION_EPS)).reshape(len(scales), -1, *x_BCTHW.shape[2:])
        out = self.proj(out.to(x_BCTHW.dtype))
        return out


class GatedConv(nn.Module):
    """A wide convolution, channel by channel, half of which gates the other half."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = _EXPANSION * width
        self.inverted_conv = conv(width, 2 * hidden, 1, activation=True)
        self.depth_conv = conv(2 * hidden, 2 * hidden, groups=2 * hidden)
        self.point_conv = conv(hidden, width, 1, bias=False, norm=True)

    def forward(self, x_BCTHW: Tensor) -> Tensor:
        """Return the shape that was given."""
        value, gate = self.depth_conv(self.inverted_conv(x_BCTHW)).chunk(2, dim=1)
        out: Tensor = self.point_conv(value * F.silu(gate))
        return out


def attention_block(width: int) -> nn.Sequential:
    """Return linear attention, then a gated convolution."""
    return named(context_module=Residual(LinearAttention(width)), local_module=Residual(GatedConv(width)))


def averaged(x_BCTHW: Tensor, *, channels: int) -> Tensor:
    """Average groups of channels."""
    return torch.unflatten(x_BCTHW, 1, (channels, -1)).mean(dim=2)


def repeated(x_BCTHW: Tensor, *, channels: int) -> Tensor:
    """Repeat each channel in place."""
    return x_BCTHW.repeat_interleave(channels // x_BCTHW.shape[1], dim=1)


def _time_factor(x_BCTHW: Tensor, time: bool) -> int:
    return 2 if time and x_BCTHW.shape[2] > 1 else 1


def folded(x_BCTHW: Tensor, *, channels: int, time: bool) -> Tensor:
    """Halve height and width, and with `time` the frames of clips: places become channels, of which groups are averaged."""
    B, C, T, H, W = x_BCTHW.shape
    t = _time_factor(x_BCTHW, time)
    split = x_BCTHW.reshape(B, C, T // t, t, H // 2, 2, W // 2, 2)
    return averaged(split.permute(0, 1, 3, 5, 7, 2, 4, 6).flatten(1, 4), channels=channels)


def unfolded(x_BCTHW: Tensor, *, channels: int, time: bool) -> Tensor:
    """Double height and width, and with `time` the frames of clips: channels are repeated, and groups become places."""
    B, _, T, H, W = x_BCTHW.shape
    t = _time_factor(x_BCTHW, time)
    split = repeated(x_BCTHW, channels=4 * t * channels).view(B, channels, t, 2, 2, T, H, W)
    return split.permute(0, 1, 5, 2, 6, 3, 7, 4).reshape(B, channels, t * T, 2 * H, 2 * W)


class Upsampled(nn.Module):
    """A convolution of values that are repeated twice along height and width, and with `time` in the frames of clips."""

    def __init__(self, c_in: int, c_out: int, *, time: bool) -> None:
        super().__init__()
        self.conv, self._time = conv(c_in, c_out), time

    def forward(self, x_BCTHW: Tensor) -> Tensor:
        """Return `[B, C, T or 2·T, 2·H, 2·W]`."""
        factors = (float(_time_factor(x_BCTHW, self._time)), 2.0, 2.0)
        out: Tensor = self.conv(F.interpolate(x_BCTHW, scale_factor=factors, mode="nearest"))
        return out


def _blocks(stage: int, width: int, depth: int) -> list[nn.Module]:
    if stage < _CONVOLUTIONAL_STAGES:
        return [Residual(conv_block(width)) for _ in range(depth)]
    return [attention_block(width) for _ in range(depth)]


def _ops(*layers: nn.Module) -> nn.Sequential:
    return named(op_list=nn.Sequential(*layers))


def encoder(sizes: VideoDCSizes) -> nn.Sequential:
    """Return the network from pixels to latents, `[B, C, T/4, H/32, W/32]`; one frame stays one."""
    widths, channels = sizes.widths, sizes.latent_channels
    stages = []
    for stage, (width, depth) in enumerate(zip(widths, sizes.encoder_depths, strict=True)):
        layers = _blocks(stage, width, depth)
        if stage < len(_HALVES_TIME):
            time, after = _HALVES_TIME[stage], widths[stage + 1]
            smaller = conv(width, after, stride=(2 if time else 1, 2, 2))
            layers.append(Residual(smaller, partial(folded, channels=after, time=time)))
        stages.append(_ops(*layers))
    last = Residual(_ops(conv(widths[-1], channels)), partial(averaged, channels=channels))
    return named(project_in=conv(3, widths[0]), stages=nn.Sequential(*stages), project_out=last)


class FromLast(nn.Sequential):
    """Layers in the opposite order: the last one is the first that is applied."""

    def forward(self, x_BCTHW: Tensor) -> Tensor:
        """Apply the layers."""
        for layer in reversed(self):
            x_BCTHW = layer(x_BCTHW)
        return x_BCTHW


def decoder(sizes: VideoDCSizes) -> nn.Sequential:
    """Return the network from latents to pixels, `[B, 3, 4·T, 32·H, 32·W]`; one frame stays one."""
    widths = sizes.widths
    first = Residual(conv(sizes.latent_channels, widths[-1]), partial(repeated, channels=widths[-1]))
    stages = []
    for stage, (width, depth) in enumerate(zip(widths, sizes.decoder_depths, strict=True)):
        layers = _blocks(stage, width, depth)
        if stage < len(_HALVES_TIME):
            time = _HALVES_TIME[stage]
            larger = Upsampled(widths[stage + 1], width, time=time)
            layers.insert(0, Residual(larger, partial(unfolded, channels=width, time=time)))
        stages.append(_ops(*layers))
    last = _ops(VideoDCNorm(widths[0]), nn.ReLU(), conv(widths[0], 3))
    return named(project_in=first, stages=FromLast(*stages), project_out=last)


class AutoencoderVideoDC(nn.Module):
    """VideoDCEncoder and decoder under upstream's key names."""

    def __init__(self, sizes: VideoDCSizes) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder(sizes), decoder(sizes)
