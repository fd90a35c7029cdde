"""Open-Sora's Video DC-AE as an autoencoder: clips in overlapping tiles, and latents divided by their spread.

The published weights were trained on 32 frames of 256 × 256 pixels. Longer and larger clips are encoded and decoded in
tiles of these sizes, which overlap by a quarter and are blended there, as in upstream's configs.

Legend: B clips, C channels, T frames, H height, W width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from reelworks.models import meta_init, registry
from reelworks.models.api import Autoencoder
from reelworks.models.autoencoders.diffusers_kl import CONTRACT, config_of, require_names
from reelworks.models.components import autoencoder_geometry
from reelworks.models.config import AutoencoderConfig
from reelworks.models.families.opensora2.dc_ae import PUBLISHED, AutoencoderVideoDC, VideoDCSizes
from reelworks.models.storage import weights

_TIME, _HEIGHT, _WIDTH = 2, 3, 4


class Span(NamedTuple):
    """Length of a tile along an axis, before and after a network."""

    before: int
    after: int

    @property
    def step(self) -> int:
        """Distance of two tiles before the network."""
        return self.before * 3 // 4

    @property
    def kept(self) -> int:
        """Length after the network up to where the next tile begins."""
        return self.after * 3 // 4

    @property
    def overlap(self) -> int:
        """Length after the network in which a tile and the next are blended."""
        return self.after // 4

    def tiles(self, x: Tensor, axis: int) -> list[Tensor]:
        """Return the tiles along an axis; the last ones may be shorter."""
        size = x.shape[axis]
        return [x.narrow(axis, start, min(self.before, size - start)) for start in range(0, size, self.step)]


ENCODED = Span(32, 8), Span(256, 8)  # frames and pixels to latents
DECODED = Span(8, 32), Span(8, 256)


def blended(first: Tensor, second: Tensor, axis: int, overlap: int) -> Tensor:
    """Return the second tile with a beginning that fades over from the end of the first."""
    length = min(first.shape[axis], second.shape[axis], overlap)
    shape = [-1 if i == axis else 1 for i in range(second.dim())]
    share = (torch.arange(length, device=second.device) / length).view(shape)
    end = first.narrow(axis, first.shape[axis] - length, length)
    begin, rest = second.tensor_split([length], dim=axis)
    return torch.cat([torch.lerp(end, begin, share), rest], dim=axis)


def in_tiles(x: Tensor, network: Callable[[Tensor], Tensor], time: Span, space: Span) -> Tensor:
    """Apply a network to one clip, in tiles along time if it is longer than one, and in tiles of the pictures."""
    if x.shape[_TIME] <= time.before:
        return _in_space(x, network, space)
    tiles = time.tiles(x, _TIME)
    if tiles[-1].shape[_TIME] == 1:  # alone it would be taken for a picture, and the tile before it ends there too
        tiles.pop()
    done: list[Tensor] = []
    for tile in tiles:
        out = _in_space(tile, network, space)
        done.append(blended(done[-1], out, _TIME, time.overlap) if done else out)
    *before, last = done
    return torch.cat([*(out[:, :, : time.kept] for out in before), last], dim=_TIME)


def _in_space(x: Tensor, network: Callable[[Tensor], Tensor], space: Span) -> Tensor:
    if max(x.shape[_HEIGHT], x.shape[_WIDTH]) <= space.before:
        return network(x)
    above: list[Tensor] = []
    rows = []
    for row in space.tiles(x, _HEIGHT):
        done: list[Tensor] = []
        for i, tile in enumerate(space.tiles(row, _WIDTH)):
            out = network(tile)
            if above:
                out = blended(above[i], out, _HEIGHT, space.overlap)
            done.append(blended(done[-1], out, _WIDTH, space.overlap) if done else out)
        rows.append(torch.cat([out[..., : space.kept, : space.kept] for out in done], dim=_WIDTH))
        above = done
    return torch.cat(rows, dim=_HEIGHT)


@final
class VideoDCAutoencoder:
    """The Video DC-AE, whose latents have 128 channels and one element for 4 × 32 × 32 pixels.

    A picture is one latent frame. So would be a clip of 4 frames, whose latents would decode to a picture; clips have
    8 or more.
    """

    def __init__(self, config: AutoencoderConfig, network: AutoencoderVideoDC, channels: int) -> None:
        self.geometry = autoencoder_geometry(config)
        self.latent_channels = channels
        self.contract = CONTRACT.computing_in(getattr(torch, config.dtype))
        self.module = network.requires_grad_(False).eval()
        nn.Module.to(self.module, self.contract.storage)
        self.encoding_networks = (self.module.encoder,)
        self._std = config.std

    @torch.no_grad()
    def encode(self, video_BCTHW: Tensor) -> Tensor:
        """Encode `[B, 3, T, H, W]` in [-1, 1] as `[B, 128, T/4, H/32, W/32]`; one frame as one."""
        return self._each(self.module.encoder, video_BCTHW, ENCODED) / self._std

    @torch.no_grad()
    def decode(self, latent_BCTHW: Tensor, num_frames: int) -> Tensor:
        """Decode `[B, 128, T, h, w]` to `[B, 3, num_frames, 32·h, 32·w]`; values are not clamped."""
        video = self._each(self.module.decoder, latent_BCTHW * self._std, DECODED)
        assert video.shape[_TIME] == num_frames, (
            f"{latent_BCTHW.shape[_TIME]} latent frames became {video.shape[_TIME]}"
        )
        return video

    def _each(self, network: nn.Module, clips: Tensor, spans: tuple[Span, Span]) -> Tensor:
        """Apply a network to one clip after the other, in the dtypes of the contract; tiles are blended in the last."""

        def run(tile: Tensor) -> Tensor:
            out: Tensor = network(tile)
            return out.to(self.contract.output)

        return torch.cat([in_tiles(clip, run, *spans) for clip in torch.split(clips.to(self.contract.compute), 1)])

    def to(self, device: torch.device) -> Autoencoder:
        """Move the network and return this object."""
        self.module.to(device)
        return self


def build(config: AutoencoderConfig, sizes: VideoDCSizes = PUBLISHED) -> VideoDCAutoencoder:
    """Build the autoencoder with the weights that the recipe names."""
    field, facts = "autoencoder.weights", registry.AUTOENCODERS[config.name]
    assert config.weights is not None, "the recipe was checked"
    config_of(config)
    if config.weights.endswith(".safetensors"):
        require_names(config, weights.shapes(config.weights, field))
    with meta_init.build_on_meta():
        network = AutoencoderVideoDC(sizes)
    weights.load_into(network, weights.read(config.weights, field, file=facts.file), config.weights, field)
    return VideoDCAutoencoder(config, network, sizes.latent_channels)
