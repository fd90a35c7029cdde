"""Sizes of LongCat-Image networks; torch-free."""

from __future__ import annotations

from typing import ClassVar

from reelworks.models import family, family_file
from reelworks.models.families.flux.spec import RELEASE_LAYERS


class LongCatImageConfig(family.PictureConfig):
    """Arguments of diffusers' LongCatImageTransformer2DModel; defaults are the published ones."""

    conditioning: ClassVar[family.Conditioning] = family.Conditioning(guided_length="limited")
    network: ClassVar[family.Network] = family.Network(
        "LongCatImageTransformer2DModel",
        ("transformer_blocks", "single_transformer_blocks"),
        lora=family.LoraNames(RELEASE_LAYERS, comfyui_maps_parts=True),
    )

    in_channels: family.SquareWidth = 64
    num_layers: int = 10
    num_single_layers: int = 20
    attention_head_dim: int = 128
    num_attention_heads: int = 24
    joint_attention_dim: family.TextWidth = 3584
    axes_dims_rope: tuple[int, int, int] = (16, 56, 56)


FAMILY = family_file.read(__package__, LongCatImageConfig)
