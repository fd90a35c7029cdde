"""Sizes of SANA-Video networks; torch-free."""

from __future__ import annotations

from typing import ClassVar

from reelworks.models import family, family_file


class SanaVideoConfig(family.NetworkConfig):
    """Arguments of diffusers' SanaVideoTransformer3DModel; defaults are those of the model of 480 lines."""

    patch_size: ClassVar[tuple[int, int, int]] = (1, 2, 2)
    network: ClassVar[family.Network] = family.Network(
        "SanaVideoTransformer3DModel", ("transformer_blocks",), passes=family.PassRules(blocks_see_shapes=True)
    )

    in_channels: family.LatentWidth = 16
    out_channels: family.LatentWidth = 16
    num_attention_heads: int = 20
    attention_head_dim: int = 112
    num_layers: int = 20
    num_cross_attention_heads: int = 20
    cross_attention_head_dim: int = 112
    cross_attention_dim: int = 2240
    caption_channels: family.TextWidth = 2304
    mlp_ratio: float = 3.0


FAMILY = family_file.read(__package__, SanaVideoConfig)
