"""Sizes of FLUX.1 networks; torch-free."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field

from reelworks.models import family, family_file

RELEASE_LAYERS = family.layer_rules(__file__)


class FluxConfig(family.PictureConfig):
    """Arguments of diffusers' FluxTransformer2DModel; defaults are those of FLUX.1-dev.

    `companion`: "control" adds channels to the noise, as in FLUX.1-Canny and -Depth; "source" adds tokens after
    it, as in FLUX.1-Kontext.
    """

    network: ClassVar[family.Network] = family.Network(
        "FluxTransformer2DModel",
        ("transformer_blocks", "single_transformer_blocks"),
        files=family.NetworkFiles(widened="x_embedder.weight"),
        lora=family.LoraNames(RELEASE_LAYERS, comfyui_maps_parts=True),
        sequence=family.SequenceSplit(attentions=("num_layers", "num_single_layers"), captions=True),
    )

    in_channels: family.SquareWidth = 64
    out_channels: family.SquareWidth = 64
    num_layers: int = 19
    num_single_layers: int = 38
    attention_head_dim: int = 128
    num_attention_heads: int = 24
    joint_attention_dim: family.TextWidth = 4096
    pooled_projection_dim: family.PooledWidth = 768
    guidance_embeds: bool = True
    axes_dims_rope: tuple[int, int, int] = (16, 56, 56)
    companion: Literal["control", "source"] | None = Field(default=None, exclude=True)

    @property
    def conditioning(self) -> family.Conditioning:
        """Conditioning of the network; a distilled one takes the guidance scale."""
        return family.Conditioning(
            guidance="embedded" if self.guidance_embeds else "classifier-free",
            companions=family.Companions(
                takes=() if self.companion is None else (self.companion,),
                needs=("control",) if self.companion == "control" else (),
            ),
        )

    def fit(self, components: family.ComponentShapes) -> Self:
        """Return a copy with the widths of the components."""
        fitted = super().fit(components)
        if self.companion == "control":
            return fitted.model_copy(update={"in_channels": 2 * fitted.in_channels})
        return fitted


FAMILY = family_file.read(__package__, FluxConfig)
