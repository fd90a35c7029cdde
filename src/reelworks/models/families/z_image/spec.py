"""Sizes of Z-Image networks; torch-free."""

from __future__ import annotations

from typing import ClassVar

from reelworks.models import family, family_file

_ATTENTION = {family.QKV.replace("attn", "attention"): "attention.qkv", "attention.to_out.0": "attention.out"}
_RELEASE_LAYERS = (
    *family.release_blocks("layers", "layers", _ATTENTION),
    *family.release_blocks("noise_refiner", "noise_refiner", _ATTENTION),
    *family.release_blocks("context_refiner", "context_refiner", _ATTENTION),
    family.KeyRule("all_x_embedder.2-1", "x_embedder"),
    family.KeyRule("all_final_layer.2-1.linear", "final_layer.linear"),
    family.KeyRule("all_final_layer.2-1.adaLN_modulation.1", "final_layer.adaLN_modulation.1"),
)


class ZImageConfig(family.NetworkConfig):
    """Arguments of diffusers' ZImageTransformer2DModel; defaults are the published ones."""

    patch_size: ClassVar[tuple[int, int, int]] = (1, 2, 2)
    pictures_only: ClassVar[bool] = True
    network: ClassVar[family.Network] = family.Network(
        "ZImageTransformer2DModel",
        ("noise_refiner", "context_refiner", "layers"),
        lora=family.LoraNames(_RELEASE_LAYERS, comfyui="diffusers"),
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
