"""The autoencoders of Open-Sora, with upstream's state-dict keys so that their weights load.

v1.1 encodes frame by frame with the 2D autoencoder of Stable Diffusion. In v1.2, a causal network then encodes every
four frames of 2D latents as one: an output depends on no later frame, and frames before the first are 0. It follows
MAGVIT-v2 (Yu et al. 2023).

Shape legend: B batch, C channels, T frames, H W height and width of pixels or latents.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from reelworks.core import optional_imports
from reelworks.models.api import Autoencoder
from reelworks.models.autoencoders.diffusers_kl import CONTRACT, config_of, with_current_names
from reelworks.models.components import CHUNK_FRAMES, autoencoder_geometry
from reelworks.models.config import AutoencoderConfig
from reelworks.models.storage import weights

_SPATIAL_SCALE = 0.18215  # gives Stable Diffusion's latents about unit variance
_SHIFT, _SCALE = (-0.10, 0.34, 0.27, 0.98), (3.85, 2.32, 2.33, 3.06)
_FRAMES_AT_ONCE = 4  # bounds the memory of the 2D half
_CHUNK_LATENTS = 5


@dataclass(frozen=True)
class TemporalSizes:
    """Sizes of the temporal half; defaults are those of v1.2."""

    channels: int = 4  # of the 2D latents and of the output
    filters: int = 128  # width of the outermost level
    multipliers: tuple[int, ...] = (1, 2, 2, 4)  # widths of the levels in units of `filters`
    halves: tuple[bool, ...] = (False, True, True)  # whether time is halved after a level; not after the last
    num_res_blocks: int = 4  # per level
    num_groups: int = 32

    @property
    def widths(self) -> list[int]:
        """Channels of each level."""
        return [self.filters * multiplier for multiplier in self.multipliers]


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


def _level(c_in: int, c_out: int, sizes: TemporalSizes) -> nn.Sequential:
    widths = [c_in] + [c_out] * sizes.num_res_blocks
    return nn.Sequential(*(ResBlock(a, b, sizes.num_groups) for a, b in itertools.pairwise(widths)))


class TemporalEncoder(nn.Module):
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
            x = level(x)
            if i < len(self.conv_blocks):
                x = self.conv_blocks[i](x)
        out: Tensor = self.conv2(F.silu(self.norm1(self.res_blocks(x))))
        return out


class TemporalDecoder(nn.Module):
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
        x = self.res_blocks(self.conv1(z_BCTHW))
        for i in reversed(range(len(self.block_res_blocks))):
            x = self.block_res_blocks[i](x)
            if i and self._halves[i - 1]:
                x = _double_time(self.conv_blocks[i - 1](x))
        out: Tensor = self.conv_out(F.silu(self.norm1(x)))
        return out


def _double_time(x_BCTHW: Tensor) -> Tensor:
    B, C, T, H, W = x_BCTHW.shape
    return x_BCTHW.view(B, C // 2, 2, T, H, W).transpose(2, 3).reshape(B, C // 2, 2 * T, H, W)


class TemporalAutoencoder(nn.Module):
    """An autoencoder from 2D latents to latents with fewer frames."""

    def __init__(self, sizes: TemporalSizes) -> None:
        super().__init__()
        self.stride = 2 ** sum(sizes.halves)  # frames per latent frame
        self.encoder, self.decoder = TemporalEncoder(sizes), TemporalDecoder(sizes)
        self.quant_conv = CausalConv3d(2 * sizes.channels, 2 * sizes.channels, 1)
        self.post_quant_conv = CausalConv3d(sizes.channels, sizes.channels, 1)

    def encode(self, x_BCTHW: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log variance, after padding with zero frames at the start to a multiple of the stride."""
        missing = -x_BCTHW.shape[2] % self.stride
        moments = self.quant_conv(self.encoder(F.pad(x_BCTHW, (0, 0, 0, 0, missing, 0))))
        mean, log_variance = moments.chunk(2, dim=1)
        return mean, torch.clamp(log_variance, -30.0, 20.0)

    def decode(self, z_BCTHW: Tensor, num_frames: int) -> Tensor:
        """Decode to `[B, C, num_frames, H, W]` and drop the frames that `encode` padded with."""
        out: Tensor = self.decoder(self.post_quant_conv(z_BCTHW))
        return out[:, :, -num_frames % self.stride :]


@dataclass(frozen=True)
class OpenSoraSizes:
    """Sizes of both halves, the spatial ones as arguments of diffusers' AutoencoderKL; defaults are those of v1.2."""

    spatial: dict[str, Any] = field(
        default_factory=lambda: {
            "down_block_types": ("DownEncoderBlock2D",) * 4,
            "up_block_types": ("UpDecoderBlock2D",) * 4,
            "block_out_channels": (128, 256, 512, 512),
            "layers_per_block": 2,
            "latent_channels": 4,
            "norm_num_groups": 32,
        }
    )
    temporal: TemporalSizes = field(default_factory=TemporalSizes)


class Spatial(nn.Module):
    """The 2D autoencoder, applied frame by frame."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module: Any = module

    @property
    def encoder(self) -> nn.Module:
        """The network that encodes."""
        encoder: nn.Module = self.module.encoder
        return encoder

    def encode(self, video_BCTHW: Tensor) -> Tensor:
        """Return the posterior's means, `[B, 4, T, H/8, W/8]` float32; remainders of H and W are dropped."""
        parts = _as_pictures(video_BCTHW.to(_dtype(self)))
        latents: list[Tensor] = [self.module.encode(part).latent_dist.mode() for part in parts]
        return _as_clips(latents, len(video_BCTHW)).float() * _SPATIAL_SCALE

    def decode(self, latent_BCTHW: Tensor) -> Tensor:
        """Return `[B, 3, T, 8·H, 8·W]` float32."""
        parts = _as_pictures((latent_BCTHW / _SPATIAL_SCALE).to(_dtype(self)))
        video: list[Tensor] = [self.module.decode(part).sample for part in parts]
        return _as_clips(video, len(latent_BCTHW)).float()


def _dtype(network: nn.Module) -> torch.dtype:
    return next(network.parameters()).dtype


def _as_pictures(clips_BCTHW: Tensor) -> tuple[Tensor, ...]:
    return torch.split(clips_BCTHW.transpose(1, 2).flatten(0, 1), _FRAMES_AT_ONCE)


def _as_clips(parts: list[Tensor], batch_size: int) -> Tensor:
    pictures = torch.cat(parts)
    return pictures.view(batch_size, -1, *pictures.shape[1:]).transpose(1, 2)


class VideoNetwork(nn.Module):
    """The spatial and the temporal autoencoder of v1.2 under upstream's key names."""

    shift: Tensor
    scale: Tensor

    def __init__(self, sizes: OpenSoraSizes) -> None:
        super().__init__()
        self.spatial_vae = Spatial(optional_imports.from_diffusers("AutoencoderKL")(**sizes.spatial))
        self.temporal_vae = TemporalAutoencoder(sizes.temporal)
        self.register_buffer("shift", torch.tensor(_SHIFT).view(1, -1, 1, 1, 1))
        self.register_buffer("scale", torch.tensor(_SCALE).view(1, -1, 1, 1, 1))

    def encode(self, video_BCTHW: Tensor) -> Tensor:
        """Encode in independent chunks of 17 frames."""
        chunks = torch.split(self.spatial_vae.encode(video_BCTHW), CHUNK_FRAMES, dim=2)
        means = [self.temporal_vae.encode(chunk.to(_dtype(self)))[0] for chunk in chunks]
        return (torch.cat(means, dim=2).float() - self.shift) / self.scale

    def decode(self, latent_BCTHW: Tensor, num_frames: int) -> Tensor:
        """Decode in independent chunks of 5 latent frames."""
        video, frames_left = [], num_frames
        for chunk in torch.split(latent_BCTHW * self.scale + self.shift, _CHUNK_LATENTS, dim=2):
            video.append(self.temporal_vae.decode(chunk.to(_dtype(self)), min(frames_left, CHUNK_FRAMES)))
            frames_left -= CHUNK_FRAMES
        return self.spatial_vae.decode(torch.cat(video, dim=2).float())


@final
class OpenSoraAutoencoder:
    """The video autoencoder of Open-Sora v1.2, or the frame by frame one of v1.1.

    Height and width are divided by 8, rounded down. In v1.2, 17 frames become 5 and remaining frames a quarter,
    rounded up. Latents are the means of the posteriors, where upstream samples: with the means, a clip's latents
    depend on the clip alone, so that they can be stored. Samples differ from them by far less than the means vary.
    """

    def __init__(self, config: AutoencoderConfig, network: VideoNetwork | Spatial) -> None:
        self.geometry = autoencoder_geometry(config)
        self.latent_channels, self.contract = 4, CONTRACT.computing_in(getattr(torch, config.dtype))
        self._network = network.requires_grad_(False).eval()
        halves = (network.spatial_vae, network.temporal_vae) if isinstance(network, VideoNetwork) else (network,)
        self.encoding_networks = tuple(half.encoder for half in halves)
        for parameter in network.parameters():  # the buffers (shift and scale) stay float32
            parameter.data = parameter.data.to(self.contract.storage)

    def encode(self, video_BCTHW: Tensor) -> Tensor:
        """Encode `[B, 3, T, H, W]` in [-1, 1] as `[B, 4, T', H/8, W/8]`."""
        return self._network.encode(video_BCTHW)

    def decode(self, latent_BCTHW: Tensor, num_frames: int) -> Tensor:
        """Decode `[B, 4, T', h, w]` to `[B, 3, num_frames, 8·h, 8·w]`; values are not clamped."""
        if isinstance(self._network, Spatial):
            return self._network.decode(latent_BCTHW)
        return self._network.decode(latent_BCTHW, num_frames)

    def to(self, device: torch.device) -> Autoencoder:
        """Move the network and return this object."""
        self._network.to(device)
        return self


def build(config: AutoencoderConfig, sizes: OpenSoraSizes = OpenSoraSizes()) -> OpenSoraAutoencoder:
    """Build the autoencoder with the weights that the recipe names."""
    field = "autoencoder.weights"
    assert config.weights is not None, "the recipe was checked"
    if config.name == "opensora-1.1":
        config_of(config)
        with weights.telling(field, config.weights):
            state = with_current_names(weights.read(config.weights, field))
        spatial = Spatial(optional_imports.from_diffusers("AutoencoderKL")(**sizes.spatial))
        weights.load_into(spatial.module, state, config.weights, field)
        return OpenSoraAutoencoder(config, spatial)
    state = weights.read(config.weights, field)
    network = VideoNetwork(sizes)
    weights.load_into(network, state, config.weights, field)
    return OpenSoraAutoencoder(config, network)
