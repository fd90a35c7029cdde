"""Sizes of Stable Diffusion 1 networks; torch-free."""

from __future__ import annotations

from typing import ClassVar, Literal

from reelworks.models import family, family_file
from reelworks.models.families.sdxl.spec import UNetConfig


class SD15Config(UNetConfig):
    """Defaults are those of Stable Diffusion 1.5."""

    kohya_names: ClassVar[Literal["release", "diffusers"]] = "diffusers"

    sample_size: int = 64
    down_block_types: tuple[str, ...] = ("CrossAttnDownBlock2D",) * 3 + ("DownBlock2D",)
    up_block_types: tuple[str, ...] = ("UpBlock2D",) + ("CrossAttnUpBlock2D",) * 3
    block_out_channels: tuple[int, ...] = (320, 640, 1280, 1280)
    cross_attention_dim: family.TextWidth = 768
    transformer_layers_per_block: tuple[int, ...] = (1, 1, 1, 1)
    attention_head_dim: tuple[int, ...] = (8, 8, 8, 8)
    use_linear_projection: bool = False


FAMILY = family_file.read(__package__, SD15Config)
