"""Sizes of Z-Image networks; torch-free."""

from __future__ import annotations

from typing import ClassVar

from reelworks.models import family, family_file


class ZImageConfig(family.PictureConfig):
    """Arguments of diffusers' ZImageTransformer2DModel; defaults are the published ones."""

    network: ClassVar[family.Network] = family.Network(
        "ZImageTransformer2DModel",
        ("noise_refiner", "context_refiner", "layers"),
        lora=family.LoraNames(family.layer_rules(__file__), comfyui="diffusers"),
        passes=family.PassRules(caption_multiple=32),
    )

    in_channels: family.LatentWidth = 16
    dim: int = 3840
    n_layers: int = 30
    n_refiner_layers: int = 2
    n_heads: int = 30
    n_kv_heads: int = 30
    cap_feat_dim: family.TextWidth = 2560
    axes_dims: tuple[int, int, int] = (32, 48, 48)
    axes_lens: tuple[int, int, int] = (1536, 512, 512)


FAMILY = family_file.read(__package__, ZImageConfig)
