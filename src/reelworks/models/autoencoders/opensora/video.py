"""Open-Sora's autoencoders behind the trainer's interface."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn

from reelworks.core.shape import Geometry
from reelworks.models import weights
from reelworks.models.api import Autoencoder
from reelworks.models.autoencoders import identity
from reelworks.models.autoencoders.opensora.temporal import TemporalAutoencoder, TemporalSizes
from reelworks.models.components import CHUNK_FRAMES, autoencoder_geometry
from reelworks.models.config import AutoencoderConfig
from reelworks.precision.contract import Contract, Role

_SPATIAL_SCALE = 0.18215  # gives Stable Diffusion's latents about unit variance
_SHIFT, _SCALE = (-0.10, 0.34, 0.27, 0.98), (3.85, 2.32, 2.33, 3.06)
_FRAMES_AT_ONCE = 4  # bounds the memory of the 2D half
_CHUNK_LATENTS = 5
_F32 = torch.float32
# Activations of the 2D half pass 65504, the largest number of float16, and become infinite.
CONTRACT = Contract(
    _F32,
    _F32,
    None,
    None,
    _F32,
    {"video": Role.CONDITION, "latent": Role.LATENT},
    overflows=frozenset({torch.float16}),
)


@dataclass(frozen=True)
class Sizes:
    """Sizes of both halves; defaults are those of v1.2.

    Attributes:
        spatial: Arguments of diffusers' AutoencoderKL.
        temporal: Sizes of the temporal half.
    """

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
    """Both halves of v1.2 under upstream's key names."""

    shift: Tensor
    scale: Tensor

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.spatial_vae = Spatial(_diffusers().AutoencoderKL(**sizes.spatial))
        self.temporal_vae = TemporalAutoencoder(sizes.temporal)
        self.register_buffer("shift", torch.tensor(_SHIFT).view(1, -1, 1, 1, 1))
        self.register_buffer("scale", torch.tensor(_SCALE).view(1, -1, 1, 1, 1))

    def encode(self, video_BCTHW: Tensor) -> Tensor:
        """Encode in independent chunks of 17 frames."""
        chunks = torch.split(self.spatial_vae.encode(video_BCTHW), CHUNK_FRAMES, dim=2)
        means = [self.temporal_vae.encode(chunk.to(_dtype(self))).mean for chunk in chunks]
        latent = torch.cat(means, dim=2).float()
        return (latent - self.shift) / self.scale

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

    Latents are the means of the posteriors, where upstream samples. With the means, a clip's latents depend on
    the clip alone, so that they can be stored. Samples differ from them by far less than the means vary.

    Attributes:
        geometry: Height and width are divided by 8, rounded down. In v1.2, 17 frames become 5 and remaining frames
            a quarter, rounded up.
        latent_channels: Channels of the latents, 4.
        contract: Computes in float32 or bfloat16 and returns float32; float16 is known to overflow.
    """

    def __init__(self, config: AutoencoderConfig, network: VideoNetwork | Spatial) -> None:
        self.geometry: Geometry = autoencoder_geometry(config)
        self.latent_channels, self.contract = 4, CONTRACT.computing_in(getattr(torch, config.dtype))
        self._network = network.requires_grad_(False).eval()
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


def build(config: AutoencoderConfig, sizes: Sizes = Sizes()) -> OpenSoraAutoencoder:
    """Build the autoencoder with the weights that the recipe names.

    Raises:
        UserError: The weights cannot be read, or do not fit the network.
    """
    field = "autoencoder.weights"
    assert config.weights is not None, "the recipe was checked"
    if config.name == "opensora-1.1":
        identity.config_of(config)
    state = weights.read(config.weights, field)
    if config.name == "opensora-1.1":
        module = _diffusers().AutoencoderKL(**sizes.spatial)
        weights.load_into(module, _current_names(state), config.weights, field)
        return OpenSoraAutoencoder(config, Spatial(module))
    network = VideoNetwork(sizes)
    weights.load_into(network, state, config.weights, field)
    return OpenSoraAutoencoder(config, network)


def _diffusers() -> Any:
    """Import diffusers at first use, because that takes a second."""
    return importlib.import_module("diffusers")


_CURRENT_NAMES = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}


def _current_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename the attention layers of files that diffusers wrote before release 0.17."""
    return {".".join(_CURRENT_NAMES.get(part, part) for part in key.split(".")): value for key, value in state.items()}
