"""Sizes of Lumina Image 2.0 networks; torch-free."""

from __future__ import annotations

from typing import ClassVar

from reelworks.models import family, family_file

_BLOCKS = ("noise_refiner", "context_refiner", "layers")


class Lumina2Config(family.PictureConfig):
    """Arguments of diffusers' Lumina2Transformer2DModel; defaults are the published ones."""

    conditioning: ClassVar[family.Conditioning] = family.Conditioning(guided_length="rows")
    network: ClassVar[family.Network] = family.Network(
        "Lumina2Transformer2DModel",
        _BLOCKS,
        lora=family.LoraNames(family.layer_rules(__file__)),
        passes=family.PassRules(caption_multiple=1),
    )

    in_channels: family.LatentWidth = 16
    hidden_size: int = 2304
    num_layers: int = 26
    num_refiner_layers: int = 2
    num_attention_heads: int = 24
    num_kv_heads: int = 8
    multiple_of: int = 256
    axes_dim_rope: tuple[int, int, int] = (32, 32, 32)
    cap_feat_dim: family.TextWidth = 2304


FAMILY = family_file.read(__package__, Lumina2Config)
