"""Sizes of AuraFlow networks; torch-free."""

from __future__ import annotations

from typing import ClassVar

from reelworks.models import family, family_file


class AuraFlowConfig(family.NetworkConfig):
    """Arguments of diffusers' AuraFlowTransformer2DModel; defaults are those of AuraFlow 0.3."""

    patch_size: ClassVar[tuple[int, int, int]] = (1, 2, 2)
    pictures_only: ClassVar[bool] = True
    network: ClassVar[family.Network] = family.Network(
        "AuraFlowTransformer2DModel", ("joint_transformer_blocks", "single_transformer_blocks")
    )

    sample_size: int = 64
    in_channels: family.LatentWidth = 4
    out_channels: family.LatentWidth = 4
    num_mmdit_layers: int = 4
    num_single_dit_layers: int = 32
    attention_head_dim: int = 256
    num_attention_heads: int = 12
    joint_attention_dim: family.TextWidth = 2048
    caption_projection_dim: int = 3072
    pos_embed_max_size: int = 9216


FAMILY = family_file.read(__package__, AuraFlowConfig)
