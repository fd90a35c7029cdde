"""Sizes of FLUX.2 networks; torch-free."""

from __future__ import annotations

from typing import ClassVar

from reelworks.models import family, family_file

_MODULATIONS = ("double_stream_modulation_img", "double_stream_modulation_txt", "single_stream_modulation")
_RELEASE_LAYERS = (
    *family.release_blocks("transformer_blocks", "double_blocks", family.TWO_STREAMS),
    *family.release_blocks(
        "single_transformer_blocks", "single_blocks", {"attn.to_qkv_mlp_proj": "linear1", "attn.to_out": "linear2"}
    ),
    *(family.KeyRule(f"{name}.linear", f"{name}.lin") for name in _MODULATIONS),
    *family.release_inputs("time_guidance_embed"),
    *family.FINAL_LAYERS,
)


class Flux2Config(family.NetworkConfig):
    """Arguments of diffusers' Flux2Transformer2DModel; defaults are those of FLUX.2-dev."""

    patch_size: ClassVar[tuple[int, int, int]] = (1, 1, 1)
    pictures_only: ClassVar[bool] = True
    network: ClassVar[family.Network] = family.Network(
        "Flux2Transformer2DModel",
        ("transformer_blocks", "single_transformer_blocks"),
        lora=family.LoraNames(_RELEASE_LAYERS, comfyui_maps_parts=True),
        sequence=family.SequenceSplit(attentions=("num_layers", "num_single_layers"), captions=True),
    )

    in_channels: family.LatentWidth = 128
    num_layers: int = 8
    num_single_layers: int = 48
    attention_head_dim: int = 128
    num_attention_heads: int = 48
    joint_attention_dim: family.TextWidth = 15360
    guidance_embeds: bool = True
    axes_dims_rope: tuple[int, int, int, int] = (32, 32, 32, 32)

    @property
    def conditioning(self) -> family.Conditioning:
        """Conditioning of the network; a distilled one takes the guidance scale."""
        return family.Conditioning(
            guidance="embedded" if self.guidance_embeds else "classifier-free",
            companions=family.Companions(("source",), most_sources=4),
        )


FAMILY = family_file.read(__package__, Flux2Config)
