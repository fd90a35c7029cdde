"""Sizes of ERNIE-Image networks; torch-free."""

from __future__ import annotations

from typing import ClassVar

from reelworks.models import family, family_file


class ErnieImageConfig(family.PictureConfig):
    """Arguments of diffusers' ErnieImageTransformer2DModel; defaults are the published ones."""

    patch_size: ClassVar[tuple[int, int, int]] = (1, 1, 1)
    network: ClassVar[family.Network] = family.Network("ErnieImageTransformer2DModel", ("layers",))

    in_channels: family.LatentWidth = 128
    out_channels: family.LatentWidth = 128
    hidden_size: int = 4096
    ffn_hidden_size: int = 12_288
    num_layers: int = 36
    num_attention_heads: int = 32
    text_in_dim: family.TextWidth = 3072
    rope_axes_dim: tuple[int, int, int] = (32, 48, 48)


FAMILY = family_file.read(__package__, ErnieImageConfig)
