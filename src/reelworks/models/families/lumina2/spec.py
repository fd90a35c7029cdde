"""Sizes of Lumina Image 2.0 networks; torch-free."""

from __future__ import annotations

from typing import ClassVar

from reelworks.models import family, family_file

_LAYERS = {
    "attn.to_out.0": "attention.out",
    **{f"feed_forward.linear_{number}": f"feed_forward.w{number}" for number in (1, 2, 3)},
    "norm1.linear": "adaLN_modulation.1",
}
_BLOCKS = ("noise_refiner", "context_refiner", "layers")
_RELEASE_LAYERS = (
    # Three heads of a query share one of a key and one of a value.
    *(
        rule._replace(heights=(3, 1, 1))
        for blocks in _BLOCKS
        for rule in family.release_blocks(blocks, blocks, {family.QKV: "attention.qkv"})
    ),
    *(rule for blocks in _BLOCKS for rule in family.release_blocks(blocks, blocks, _LAYERS)),
    *(
        family.KeyRule(f"time_caption_embed.timestep_embedder.linear_{i}", f"t_embedder.mlp.{2 * i - 2}")
        for i in (1, 2)
    ),
    family.KeyRule("time_caption_embed.caption_embedder.1", "cap_embedder.1"),
    family.KeyRule("norm_out.linear_1", "final_layer.adaLN_modulation.1"),
    family.KeyRule("norm_out.linear_2", "final_layer.linear"),
)


class Lumina2Config(family.NetworkConfig):
    """Arguments of diffusers' Lumina2Transformer2DModel; defaults are the published ones."""

    patch_size: ClassVar[tuple[int, int, int]] = (1, 2, 2)
    pictures_only: ClassVar[bool] = True
    conditioning: ClassVar[family.Conditioning] = family.Conditioning(guided_length="rows")
    network: ClassVar[family.Network] = family.Network(
        "Lumina2Transformer2DModel",
        _BLOCKS,
        lora=family.LoraNames(_RELEASE_LAYERS),
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
