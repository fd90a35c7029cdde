"""Sizes of Krea 2 networks; torch-free."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field

from reelworks.core.errors import UserError
from reelworks.models import family, family_file


class Krea2Config(family.PictureConfig):
    """Arguments of diffusers' Krea2Transformer2DModel; defaults are the published ones.

    `distilled`: few steps were distilled into it, at times that do not depend on a picture's size.
    """

    network: ClassVar[family.Network] = family.Network(
        "Krea2Transformer2DModel",
        ("text_fusion.layerwise_blocks", "text_fusion.refiner_blocks", "transformer_blocks"),
        lora=family.LoraNames(family.layer_rules(__file__)),
    )

    in_channels: family.SquareWidth = 64
    num_layers: int = 28
    attention_head_dim: int = 128
    num_attention_heads: int = 48
    num_key_value_heads: int = 12
    intermediate_size: int = 16384
    text_hidden_dim: int = 2560
    num_text_layers: int = 12
    text_num_attention_heads: int = 20
    text_num_key_value_heads: int = 20
    text_intermediate_size: int = 6912
    axes_dims_rope: tuple[int, int, int] = (32, 48, 48)
    distilled: bool = Field(default=False, exclude=True)

    def fit(self, components: family.ComponentShapes) -> Self:
        """Return a copy with the widths of the components; a token holds the states of several layers of the encoder."""
        width, rest = divmod(components.text_dim, self.num_text_layers)
        if rest:
            raise UserError(
                f"this model takes the states of {self.num_text_layers} layers of an encoder as one token",
                code="text-width-not-a-multiple",
                field="text_encoder.dim",
                value=components.text_dim,
                remedy=f"use a multiple of {self.num_text_layers}, or the text encoder that the model was trained with",
            )
        return super().fit(components).model_copy(update={"text_hidden_dim": width})


FAMILY = family_file.read(__package__, Krea2Config)
