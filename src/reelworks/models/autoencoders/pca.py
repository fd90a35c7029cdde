"""A small autoencoder for experiments: principal components of blocks of eight frames, encoded and decoded linearly.

Shape legend: B batch, C channels, T frames, H W height and width of pixels or latents, N groups of eight frames or
blocks of them, P numbers of a block.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from reelworks.models.api import Autoencoder
from reelworks.models.autoencoders import pixel
from reelworks.models.components import PCA_CHANNELS, PCA_FRAMES, autoencoder_geometry
from reelworks.models.config import AutoencoderConfig
from reelworks.models.storage import weights

_SIDE = 32  # pixels per latent element in height and width
# Colours, of which each has components of its own in a latent, by the same maps, so that shapes are not bound to these.
_COLOURS = 3
_BLOCK = PCA_FRAMES * _SIDE**2  # numbers of a block of one colour
_COMPONENTS = PCA_CHANNELS // _COLOURS
_LEAST_STD = 0.01  # of a component, so that one without content is not enlarged to noise
_WHITENING = 0.5  # power of its standard deviation by which a component is divided; 1 would give all the same weight
_ITERATIONS = 3  # of the subspace, after which components hardly change
_GROUPS_AT_ONCE = 32  # bounds memory


class PcaNetwork(nn.Module):
    """Two linear maps: of each block of 8 frames × 32 × 32 pixels of one colour to its components, and back."""

    def __init__(self) -> None:
        super().__init__()
        self.components = nn.Parameter(torch.zeros(_COMPONENTS, _BLOCK))
        self.scale = nn.Parameter(torch.ones(_COMPONENTS))
        self.mean = nn.Parameter(torch.zeros(_BLOCK))

    @torch.no_grad()
    def fit(self, blocks_NP: Tensor) -> None:
        """Set it to the principal components of blocks, found by a random projection from the global generator.

        Latents of these blocks have mean 0, and a variance of 1 over all channels. Those of the first have a larger one,
        so that a denoiser sees the coarse before the fine. Missing components stay 0, if there are fewer blocks.
        """
        self.mean.copy_(blocks_NP.mean(dim=0))
        most = min(_COMPONENTS, *blocks_NP.shape)
        _, singular, components = torch.svd_lowrank(blocks_NP - self.mean, q=most, niter=_ITERATIONS)
        std = (singular / len(blocks_NP) ** 0.5).clamp(min=_LEAST_STD)
        # Divided by a power of its deviation, and all by one number, so that the mean variance is 1.
        scale = std**_WHITENING * (std ** (2 - 2 * _WHITENING)).mean().sqrt()
        self.components[:most], self.scale[:most] = components.T, scale

    def encode(self, groups_NTCHW: Tensor) -> Tensor:
        """Encode groups of eight frames `[N, 8, 3, H, W]` as `[N, C, H/32, W/32]`."""
        latent_NHWCK = (to_blocks(groups_NTCHW) - self.mean) @ self.components.T / self.scale
        return latent_NHWCK.flatten(3).movedim(-1, 1)

    def decode(self, latent_NCHW: Tensor) -> Tensor:
        """Undo `encode`, but for what the components leave out."""
        latent_NHWC = latent_NCHW.movedim(1, -1)
        latent_NHWCK = latent_NHWC.reshape(*latent_NHWC.shape[:3], _COLOURS, _COMPONENTS)
        blocks_NHWCP = (latent_NHWCK * self.scale) @ self.components + self.mean
        return F.pixel_shuffle(blocks_NHWCP.movedim((1, 2), (-2, -1)).contiguous(), _SIDE).transpose(1, 2)


def to_blocks(groups_NTCHW: Tensor) -> Tensor:
    """Cut groups of eight frames `[N, 8, 3, H, W]` into blocks `[N, H/32, W/32, 3, P]` of one colour each."""
    return F.pixel_unshuffle(groups_NTCHW.transpose(1, 2).contiguous(), _SIDE).movedim((-2, -1), (1, 2))


@final
class PcaAutoencoder:
    """An autoencoder of eight frames together, in squares of 32 pixels; a picture is eight equal frames.

    The order of the eight frames lies in the channels of a latent frame, and so does the direction of a motion.
    """

    contract = pixel.CONTRACT
    latent_channels = PCA_CHANNELS
    encoding_networks = ()  # one product

    def __init__(self, config: AutoencoderConfig, network: PcaNetwork) -> None:
        self.geometry = autoencoder_geometry(config)
        self._network = network.requires_grad_(False).eval()

    def encode(self, video_BCTHW: Tensor) -> Tensor:
        """Encode `[B, 3, T, H, W]` in [-1, 1] as `[B, C, T/8, H/32, W/32]`; T is 1 or a multiple of 8."""
        B, C, T, H, W = video_BCTHW.shape
        if T == 1:
            video_BCTHW = video_BCTHW.expand(-1, -1, PCA_FRAMES, -1, -1)
        groups = video_BCTHW.transpose(1, 2).reshape(-1, PCA_FRAMES, C, H, W)
        latents = torch.cat([self._network.encode(part) for part in torch.split(groups, _GROUPS_AT_ONCE)])
        return latents.view(B, -1, *latents.shape[1:]).transpose(1, 2).contiguous()

    def decode(self, latent_BCTHW: Tensor, num_frames: int) -> Tensor:
        """Decode `[B, C, t, h, w]` to `[B, 3, num_frames, 32·h, 32·w]`; values are not clamped."""
        groups = latent_BCTHW.transpose(1, 2).flatten(0, 1)
        frames = torch.cat([self._network.decode(part) for part in torch.split(groups, _GROUPS_AT_ONCE)])
        return frames.view(len(latent_BCTHW), -1, *frames.shape[2:]).transpose(1, 2)[:, :, :num_frames].contiguous()

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
