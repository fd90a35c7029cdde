"""Sizes of Chroma1 networks; torch-free."""

from __future__ import annotations

from typing import ClassVar

from reelworks.models import family, family_file
from reelworks.models.families.flux.spec import RELEASE_LAYERS

# It computes the modulations of all blocks. The release was trained with it as it is, without gradients.
_APPROXIMATOR = "distilled_guidance_layer"


class ChromaConfig(family.PictureConfig):
    """Arguments of diffusers' ChromaTransformer2DModel; defaults are the published ones."""

    network: ClassVar[family.Network] = family.Network(
        "ChromaTransformer2DModel",
        ("transformer_blocks", "single_transformer_blocks"),
        without_gradient=(f"{_APPROXIMATOR}.",),
        lora=family.LoraNames(RELEASE_LAYERS),
    )

    in_channels: family.SquareWidth = 64
    num_layers: int = 19
    num_single_layers: int = 38
    attention_head_dim: int = 128
    num_attention_heads: int = 24
    joint_attention_dim: family.TextWidth = 4096
    axes_dims_rope: tuple[int, int, int] = (16, 56, 56)
    approximator_hidden_dim: int = 5120
    approximator_layers: int = 5


FAMILY = family_file.read(__package__, ChromaConfig)
