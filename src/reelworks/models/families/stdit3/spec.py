"""Sizes of STDiT3 networks; torch-free."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field

from reelworks.core.errors import UserError
from reelworks.models import family, family_file


class STDiT3Config(family.NetworkConfig):
    """Sizes of an STDiT network; defaults are STDiT3-XL/2 as published with Open-Sora v1.2."""

    conditioning: ClassVar[family.Conditioning] = family.LEARNED
    network: ClassVar[family.Network] = family.Network(
        "STDiT3",
        ("spatial_blocks", "temporal_blocks"),
        alternates=True,
        passes=family.PassRules(pads_patches=True),
        sequence=family.SequenceSplit("num_heads", ("depth",), pads=True),
    )

    in_channels: family.LatentWidth = Field(default=4, gt=0)  # latent channels
    caption_channels: family.TextWidth = Field(default=4096, gt=0)  # width of text embeddings
    # Text tokens of the empty caption, and the most that a caption may have.
    model_max_length: int = Field(default=300, gt=0)
    depth: int = Field(default=28, gt=0)  # number of pairs of a spatial and a temporal block
    hidden_size: int = Field(default=1152, gt=0)  # width of a token
    num_heads: int = Field(default=16, gt=0)  # number of attention heads
    # Latent elements per token along (time, height, width); a token never spans frames.
    patch_size: tuple[Literal[1], int, int] = (1, 2, 2)
    mlp_ratio: float = Field(default=4.0, gt=0)  # width of a block's MLP in units of `hidden_size`
    input_sq_size: int = Field(default=512, gt=0)  # side in pixels of the square at which positions are unscaled
    qk_norm: bool = True  # whether queries and keys are normalised per head
    # Whether there is a second half of output channels (learned variance, unused by rectified flow).
    pred_sigma: bool = True

    @property
    def out_channels(self) -> int:
        """Channels that the network returns."""
        return self.in_channels * (2 if self.pred_sigma else 1)

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_heads

    def fit(self, components: family.ComponentShapes) -> Self:
        """Return a copy with the widths of the components; sizes that do not divide are refused."""
        of_others = {"model_max_length": components.text_length, "pred_sigma": components.learns_variance}
        fitted = super().fit(components).model_copy(update=of_others)
        if fitted.hidden_size % fitted.num_heads or fitted.head_dim % 2:
            raise UserError(
                f"{fitted.num_heads} heads do not divide the width into even parts",
                code="sizes-do-not-divide",
                field="model.hidden_size",
                value=fitted.hidden_size,
                remedy=f"choose a multiple of {2 * fitted.num_heads}, or other num_heads",
            )
        if fitted.hidden_size % 4:
            raise UserError(
                "positions need a sine and a cosine for each of two axes, so the width must be a multiple of 4",
                code="sizes-do-not-divide",
                field="model.hidden_size",
                value=fitted.hidden_size,
                remedy="choose a multiple of 4",
            )
        return fitted


FAMILY = family_file.read(__package__, STDiT3Config)
