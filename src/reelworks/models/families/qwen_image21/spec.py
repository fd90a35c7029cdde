"""Sizes of Qwen-Image 2.1 networks; torch-free."""

from __future__ import annotations

from typing import ClassVar

from reelworks.models import family, family_file

_GATED_PAIR = "transformer_blocks.N.img_mlp.gate_layer transformer_blocks.N.img_mlp.proj"
_RELEASE_LAYERS = (family.KeyRule(_GATED_PAIR, "transformer_blocks.N.img_mlp.gate_up"),)


class QwenImage21Config(family.EditingConfig):
    """Arguments of diffusers' QwenImage21Transformer2DModel; defaults are the published ones.

    `edits`: source pictures are inputs too.
    """

    # A token is one latent element; the text encoder's places for pictures stand for 2 × 2 of them.
    network: ClassVar[family.Network] = family.Network(
        "QwenImage21Transformer2DModel",
        ("transformer_blocks",),
        lora=family.LoraNames(_RELEASE_LAYERS),
        passes=family.PassRules(caption_multiple=1, clip_by_clip=True),
    )

    in_channels: family.LatentWidth = 64
    out_channels: family.LatentWidth = 64
    num_layers: int = 32
    attention_head_dim: int = 128
    num_attention_heads: int = 32
    context_in_dim: family.TextWidth = 4096
    axes_dims_rope: tuple[int, int, int] = (16, 56, 56)


FAMILY = family_file.read(__package__, QwenImage21Config)
