"""Sizes of ERNIE-Image networks; torch-free."""

from __future__ import annotations

from typing import ClassVar, Self

from reelworks.core.config import Config
from reelworks.models import family, family_file


class ErnieImageConfig(Config):
    """Arguments of diffusers' ErnieImageTransformer2DModel; defaults are the published ones."""

    patch_size: ClassVar[tuple[int, int, int]] = (1, 1, 1)
    pictures_only: ClassVar[bool] = True
    conditioning: ClassVar[family.Conditioning] = family.Conditioning()
    network: ClassVar[family.Network] = family.Network("ErnieImageTransformer2DModel", ("layers",))

    in_channels: int = 128
    out_channels: int = 128
    hidden_size: int = 4096
    ffn_hidden_size: int = 12_288
    num_layers: int = 36
    num_attention_heads: int = 32
    text_in_dim: int = 3072
    rope_axes_dim: tuple[int, int, int] = (32, 48, 48)

    def fit(self, components: family.ComponentShapes) -> Self:
        """Return a copy with the widths of the components."""
        return self.model_copy(update=family.widths(components, "text_in_dim"))


FAMILY = family_file.read(__package__, ErnieImageConfig)
