"""A small autoencoder for experiments: principal components of eight frames together, decoded by a convolutional network.

Shape legend: B batch, C channels, T frames, H W height and width of pixels or latents, N groups of eight frames.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from reelworks.models import weights
from reelworks.models.api import Autoencoder
from reelworks.models.autoencoders import pixel
from reelworks.models.components import PCA_CHANNELS, PCA_FRAMES, autoencoder_geometry
from reelworks.models.config import AutoencoderConfig

_SIDE = 8  # pixels per latent element in height and width
_BLOCK = 3 * PCA_FRAMES * _SIDE**2  # numbers that a latent element is made of
_WIDTH, _DEPTH = 96, 4
_LEAST_STD = 0.01  # of a component, so that one without content is not enlarged to noise
_WHITENING = 0.5  # power of its standard deviation by which a component is divided; 1 would give all the same weight
_GROUPS_AT_ONCE = 32  # bounds memory


class ResidualConvolutions(nn.Module):
    """Adds two convolutions of the input to it; a new one adds nothing."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        nn.init.zeros_(self.conv2.weight)

    def forward(self, x_NCHW: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        out: Tensor = x_NCHW + self.conv2(F.silu(self.conv1(F.silu(x_NCHW))))
        return out


class PcaNetwork(nn.Module):
    """The encoder, one linear map of each 8 × 8 × 8 block of pixels, and the decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Conv2d(_BLOCK, PCA_CHANNELS, 1).requires_grad_(False)
        self.decoder = nn.Sequential(
            nn.Conv2d(PCA_CHANNELS, _WIDTH, 3, padding=1),
            *(ResidualConvolutions(_WIDTH) for _ in range(_DEPTH)),
            nn.Conv2d(_WIDTH, _BLOCK, 1),
        )

    @torch.no_grad()
    def fit(self, groups_NTCHW: Tensor) -> None:
        """Set the encoder to the principal components of groups of frames, and the decoder to its linear inverse.

        Latents of these groups have mean 0, and a variance of 1 over all channels. Those of the first have a larger one,
        so that a denoiser sees the coarse before the fine.
        """
        blocks = _to_blocks(groups_NTCHW).movedim(1, -1).flatten(0, 2)
        mean = blocks.mean(dim=0)
        variances, components = torch.linalg.eigh(torch.cov(blocks.T))  # ascending
        components = components.flip(1)[:, :_WIDTH]
        std = variances.flip(0)[:_WIDTH].clamp(min=0).sqrt().clamp(min=_LEAST_STD)
        scale = std**_WHITENING * (std[:PCA_CHANNELS] ** (2 - 2 * _WHITENING)).mean().sqrt()
        into = (components / scale).T[:PCA_CHANNELS]
        _set(self.encoder, into[:, :, None, None], -into @ mean)
        first, last = self.decoder[0], self.decoder[-1]
        middle = torch.zeros(_WIDTH, PCA_CHANNELS, 3, 3)
        middle[range(PCA_CHANNELS), range(PCA_CHANNELS), 1, 1] = 1.0
        _set(first, middle, torch.zeros(_WIDTH))
        _set(last, (components * scale)[:, :, None, None], mean)

    def encode(self, groups_NTCHW: Tensor) -> Tensor:
        """Encode groups of eight frames `[N, 8, 3, H, W]` as `[N, C, H/8, W/8]`."""
        latent_NCHW: Tensor = self.encoder(_to_blocks(groups_NTCHW))
        return latent_NCHW

    def decode(self, latent_NCHW: Tensor) -> Tensor:
        """Undo `encode`."""
        frames_NCHW = F.pixel_shuffle(self.decoder(latent_NCHW), _SIDE)
        return frames_NCHW.view(len(frames_NCHW), PCA_FRAMES, 3, *frames_NCHW.shape[2:])


def _set(layer: nn.Module, weight: Tensor, bias: Tensor) -> None:
    layer.load_state_dict({"weight": weight, "bias": bias})


def _to_blocks(groups_NTCHW: Tensor) -> Tensor:
    return F.pixel_unshuffle(groups_NTCHW.flatten(1, 2), _SIDE)


@final
class PcaAutoencoder:
    """An autoencoder of eight frames together, in squares of eight pixels; a picture is eight equal frames.

    The order of the eight frames lies in the channels of a latent frame, and so does the direction of a motion.
    """

    contract = pixel.CONTRACT
    latent_channels = PCA_CHANNELS

    def __init__(self, config: AutoencoderConfig, network: PcaNetwork) -> None:
        self.geometry = autoencoder_geometry(config)
        self._network = network.requires_grad_(False).eval()

    def encode(self, video_BCTHW: Tensor) -> Tensor:
        """Encode `[B, 3, T, H, W]` in [-1, 1] as `[B, C, T/8, H/8, W/8]`; T is 1 or a multiple of 8."""
        B, C, T, H, W = video_BCTHW.shape
        if T == 1:
            video_BCTHW = video_BCTHW.expand(-1, -1, PCA_FRAMES, -1, -1)
        groups = video_BCTHW.transpose(1, 2).reshape(-1, PCA_FRAMES, C, H, W)
        latents = torch.cat([self._network.encode(part) for part in torch.split(groups, _GROUPS_AT_ONCE)])
        return latents.view(B, -1, *latents.shape[1:]).transpose(1, 2).contiguous()

    def decode(self, latent_BCTHW: Tensor, num_frames: int) -> Tensor:
        """Decode `[B, C, t, h, w]` to `[B, 3, num_frames, 8·h, 8·w]`; values are not clamped."""
        groups = latent_BCTHW.transpose(1, 2).flatten(0, 1)
        frames = torch.cat([self._network.decode(part) for part in torch.split(groups, _GROUPS_AT_ONCE)])
        video_BTCHW = frames.view(len(latent_BCTHW), -1, *frames.shape[2:])
        return video_BTCHW.transpose(1, 2)[:, :, :num_frames].contiguous()

    def to(self, device: torch.device) -> Autoencoder:
        """Move the weights."""
        self._network.to(device)
        return self


def build(config: AutoencoderConfig) -> Autoencoder:
    """Build it with the weights of a file."""
    assert config.weights is not None, "the recipe was checked"
    field, network = "autoencoder.weights", PcaNetwork()
    weights.load_into(network, weights.read(config.weights, field), config.weights, field)
    return PcaAutoencoder(config, network)
