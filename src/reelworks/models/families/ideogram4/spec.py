"""Sizes of Ideogram 4 networks; torch-free."""

from __future__ import annotations

from typing import ClassVar

from reelworks.models import family, family_file

_RELEASE_LAYERS = (
    family.KeyRule("layers.N.attention.to_q layers.N.attention.to_k layers.N.attention.to_v", "layers.N.attention.qkv"),
    family.KeyRule("layers.N.attention.to_out.0", "layers.N.attention.o"),
)


class Ideogram4Config(family.PictureConfig):
    """Arguments of diffusers' Ideogram4Transformer2DModel; defaults are the published ones."""

    patch_size: ClassVar[tuple[int, int, int]] = (1, 1, 1)
    conditioning: ClassVar[family.Conditioning] = family.Conditioning(guidance="second-network")
    network: ClassVar[family.Network] = family.Network(
        "Ideogram4Transformer2DModel",
        ("layers",),
        lora=family.LoraNames(_RELEASE_LAYERS),
        passes=family.PassRules(caption_multiple=1),
    )

    in_channels: family.LatentWidth = 128
    num_layers: int = 34
    attention_head_dim: int = 256
    num_attention_heads: int = 18
    intermediate_size: int = 12_288
    adaln_dim: int = 512
    llm_features_dim: family.TextWidth = 53_248
    rope_theta: int = 5_000_000
    mrope_section: tuple[int, int, int] = (24, 20, 20)


FAMILY = family_file.read(__package__, Ideogram4Config)
