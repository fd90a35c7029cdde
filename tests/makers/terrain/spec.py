"""Sizes of the network; torch-free."""

from __future__ import annotations

from typing import ClassVar, Self

from reelworks.core.config import Config
from reelworks.models import family, family_file

SIGMA_DATA = 0.5
LEAST_SIGMA, MOST_SIGMA = 0.002, 80.0


class TerrainConfig(Config):
    """Arguments of diffusers' UNet2DModel with which it is the network of the package."""

    patch_size: ClassVar[tuple[int, int, int]] = (1, 16, 16)
    pictures_only: ClassVar[bool] = True
    conditioning: ClassVar[family.Conditioning] = family.Conditioning()
    network: ClassVar[family.Network] = family.Network("UNet2DModel", ("down_blocks", "up_blocks"))

    sample_size: int = 128
    in_channels: int = 1
    out_channels: int = 1
    block_out_channels: tuple[int, ...] = (32, 32, 64, 96, 128)
    layers_per_block: int = 4
    down_block_types: tuple[str, ...] = ("ResnetDownsampleBlock2D",) * 2 + ("AttnDownBlock2D",) * 3
    up_block_types: tuple[str, ...] = ("AttnUpBlock2D",) * 3 + ("ResnetUpsampleBlock2D",) * 2
    downsample_type: str = "resnet"
    upsample_type: str = "resnet"
    resnet_time_scale_shift: str = "scale_shift"
    attention_head_dim: int = 32
    attn_norm_num_groups: int = 32

    def fit(self, components: family.ComponentShapes) -> Self:
        """Return the config as it is: each channel of a latent passes by itself, and no text is read."""
        return self


FAMILY = family_file.read(__package__, TerrainConfig)
