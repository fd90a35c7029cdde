"""Sizes of HunyuanImage 2.1 networks; torch-free."""

from __future__ import annotations

from typing import ClassVar

from reelworks.models import family, family_file
from reelworks.models.families.hunyuan_video15.spec import FILES, RELEASE_LAYERS, TRAINERS_LAYERS


class HunyuanImage21Config(family.PictureConfig):
    """Arguments of diffusers' HunyuanImageTransformer2DModel; defaults are the published ones."""

    patch_size: ClassVar[tuple[int, int, int]] = (1, 1, 1)
    network: ClassVar[family.Network] = family.Network(
        "HunyuanImageTransformer2DModel",
        ("transformer_blocks", "single_transformer_blocks"),
        files=FILES,
        lora=family.LoraNames(RELEASE_LAYERS, TRAINERS_LAYERS),
    )

    in_channels: family.LatentWidth = 64
    out_channels: family.LatentWidth = 64
    num_attention_heads: int = 28
    attention_head_dim: int = 128
    num_layers: int = 20
    num_single_layers: int = 40
    num_refiner_layers: int = 2
    text_embed_dim: family.TextWidth = 3584
    text_embed_2_dim: int = 1472
    rope_axes_dim: tuple[int, int] = (64, 64)


FAMILY = family_file.read(__package__, HunyuanImage21Config)
