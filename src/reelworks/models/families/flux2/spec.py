"""Sizes of FLUX.2 networks; torch-free."""

from __future__ import annotations

from typing import ClassVar

from reelworks.models import family, family_file
from reelworks.models.families.flux.spec import RELEASE_LAYERS


class Flux2Config(family.PictureConfig):
    """Arguments of diffusers' Flux2Transformer2DModel; defaults are those of FLUX.2-dev."""

    patch_size: ClassVar[tuple[int, int, int]] = (1, 1, 1)
    network: ClassVar[family.Network] = family.Network(
        "Flux2Transformer2DModel",
        ("transformer_blocks", "single_transformer_blocks"),
        lora=family.LoraNames(RELEASE_LAYERS, comfyui_maps_parts=True),
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
