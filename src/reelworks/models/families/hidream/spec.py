"""Sizes of HiDream-I1 networks; torch-free."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Self

from reelworks.core.errors import UserError
from reelworks.models import family, family_file

_PATCH = 2


class HiDreamConfig(family.PictureConfig):
    """Arguments of diffusers' HiDreamImageTransformer2DModel; defaults are the published ones.

    `llama_layers`: states of a text's fourth encoder by block. `force_inference_output`: a picture comes out in training too.
    """

    patch_size: ClassVar[tuple[int, int, int]] = (1, _PATCH, _PATCH)

    in_channels: family.LatentWidth = 16
    out_channels: family.LatentWidth = 16
    num_layers: int = 16
    num_single_layers: int = 32
    attention_head_dim: int = 128
    num_attention_heads: int = 20
    caption_channels: tuple[int, int] = (4096, 4096)
    text_emb_dim: family.PooledWidth = 2048
    num_routed_experts: int = 4
    num_activated_experts: int = 2
    axes_dims_rope: tuple[int, int, int] = (64, 32, 32)
    max_resolution: tuple[int, int] = (128, 128)
    llama_layers: tuple[int, ...] = (*range(32), *(31,) * 16)
    force_inference_output: bool = True

    @property
    def network(self) -> family.Network:
        """Names of the network's class and blocks, and the tokens to which pictures that are not square are filled up."""
        filled = math.prod(self.max_resolution) // _PATCH**2
        return family.Network(
            "HiDreamImageTransformer2DModel",
            ("double_stream_blocks", "single_stream_blocks"),
            passes=family.PassRules(filled_tokens=filled),
        )

    def model_dump(self, **options: Any) -> dict[str, Any]:
        """Return the arguments that the network is built with."""
        return super().model_dump(**options) | {"patch_size": _PATCH}

    def fit(self, components: family.ComponentShapes) -> Self:
        """Return a copy with the widths of the components; a token holds a T5's state and those of all layers of a Llama."""
        count = 2 + max(self.llama_layers)
        width, rest = divmod(components.text_dim, count)
        if rest:
            raise UserError(
                f"this model takes {count} states of encoders as one token",
                code="text-width-not-a-multiple",
                field="text_encoder.dim",
                value=components.text_dim,
                remedy=f"use a multiple of {count}, or the text encoder that the model was trained with",
            )
        return super().fit(components).model_copy(update={"caption_channels": (width, width)})


FAMILY = family_file.read(__package__, HiDreamConfig)
