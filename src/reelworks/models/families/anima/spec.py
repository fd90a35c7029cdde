"""Sizes of Anima's networks; torch-free."""

from __future__ import annotations

from typing import ClassVar

from reelworks.models import family, family_file


class AnimaConfig(family.PictureConfig):
    """Arguments of diffusers' CosmosTransformer3DModel; defaults are those of Anima, of Cosmos-Predict2's 2B."""

    network: ClassVar[family.Network] = family.Network(
        "CosmosTransformer3DModel",
        ("transformer_blocks",),
        files=family.NetworkFiles(other_parts=("llm_adapter.",)),
        lora=family.LoraNames(family.layer_rules(__file__)),
    )

    in_channels: family.LatentWidth = 16
    out_channels: family.LatentWidth = 16
    num_attention_heads: int = 16
    attention_head_dim: int = 128
    num_layers: int = 28
    mlp_ratio: float = 4.0
    text_embed_dim: family.TextWidth = 1024
    adaln_lora_dim: int = 256
    max_size: tuple[int, int, int] = (128, 512, 512)  # released with 240, where positions end at 2048 pixels a side
    rope_scale: tuple[float, float, float] = (1.0, 4.0, 4.0)
    concat_padding_mask: bool = True
    extra_pos_embed_type: str | None = None


FAMILY = family_file.read(__package__, AnimaConfig)
