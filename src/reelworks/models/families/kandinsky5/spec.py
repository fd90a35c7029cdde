"""Sizes of Kandinsky 5 networks; torch-free."""

from __future__ import annotations

from typing import ClassVar, Self

from reelworks.core.config import Config
from reelworks.models import family, family_file


class Kandinsky5Config(Config):
    """Arguments of diffusers' Kandinsky5Transformer3DModel; defaults are those of the lite model of clips."""

    patch_size: ClassVar[tuple[int, int, int]] = (1, 2, 2)
    conditioning: ClassVar[family.Conditioning] = family.Conditioning()
    network: ClassVar[family.Network] = family.Network(
        "Kandinsky5Transformer3DModel",
        ("text_transformer_blocks", "visual_transformer_blocks"),
        passes=family.PassRules(caption_multiple=1, clip_by_clip=True),
    )

    in_visual_dim: int = 16
    out_visual_dim: int = 16
    in_text_dim: int = 3584
    in_text_dim2: int = 768
    time_dim: int = 512
    model_dim: int = 1792
    ff_dim: int = 7168
    num_text_blocks: int = 2
    num_visual_blocks: int = 32
    axes_dims: tuple[int, int, int] = (16, 24, 24)
    # Whether the input has channels for given frames and their mask, which are zeros here; networks of clips have them.
    visual_cond: bool = True

    @property
    def pictures_only(self) -> bool:
        """Whether the network takes pictures only."""
        return not self.visual_cond

    def fit(self, components: family.ComponentShapes) -> Self:
        """Return a copy with the widths of the components."""
        channels = components.latent_channels
        widths = {"in_visual_dim": channels, "out_visual_dim": channels, "in_text_dim": components.text_dim}
        return self.model_copy(update=widths | {"in_text_dim2": family.require_pooled(components)})


FAMILY = family_file.read(__package__, Kandinsky5Config)
