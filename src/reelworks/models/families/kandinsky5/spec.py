"""Sizes of Kandinsky 5 networks; torch-free."""

from __future__ import annotations

from typing import ClassVar

from reelworks.models import family, family_file


class Kandinsky5Config(family.NetworkConfig):
    """Arguments of diffusers' Kandinsky5Transformer3DModel; defaults are those of the lite model of clips."""

    patch_size: ClassVar[tuple[int, int, int]] = (1, 2, 2)
    network: ClassVar[family.Network] = family.Network(
        "Kandinsky5Transformer3DModel",
        ("text_transformer_blocks", "visual_transformer_blocks"),
        passes=family.PassRules(caption_multiple=1, clip_by_clip=True),
    )

    in_visual_dim: family.LatentWidth = 16
    out_visual_dim: family.LatentWidth = 16
    in_text_dim: family.TextWidth = 3584
    in_text_dim2: family.PooledWidth = 768
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


FAMILY = family_file.read(__package__, Kandinsky5Config)
