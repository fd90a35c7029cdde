"""Sizes of STDiT3 networks; torch-free."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from reelworks.core.config import Config
from reelworks.core.errors import UserError


class STDiT3Config(Config):
    """Sizes of one network; defaults are STDiT3-XL/2 as published with Open-Sora v1.2.

    Attributes:
        in_channels: Latent channels.
        caption_channels: Width of text embeddings.
        model_max_length: Text tokens of the empty caption, and the most that a caption may have.
        depth: Pairs of a spatial and a temporal block.
        hidden_size: Width of a token.
        num_heads: Attention heads.
        patch_size: Latent elements per token along (time, height, width); a token never spans frames.
        mlp_ratio: Width of a block's MLP in units of `hidden_size`.
        input_sq_size: Side in pixels of the square at which positions are unscaled.
        qk_norm: Normalise queries and keys per head.
        pred_sigma: Return a second half of channels (learned variance, unused by rectified flow).
    """

    in_channels: int = Field(default=4, gt=0)
    caption_channels: int = Field(default=4096, gt=0)
    model_max_length: int = Field(default=300, gt=0)
    depth: int = Field(default=28, gt=0)
    hidden_size: int = Field(default=1152, gt=0)
    num_heads: int = Field(default=16, gt=0)
    patch_size: tuple[Literal[1], int, int] = (1, 2, 2)
    mlp_ratio: float = Field(default=4.0, gt=0)
    input_sq_size: int = Field(default=512, gt=0)
    qk_norm: bool = True
    pred_sigma: bool = True

    @property
    def out_channels(self) -> int:
        """Channels that the network returns."""
        return self.in_channels * (2 if self.pred_sigma else 1)

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_heads


PRESETS: dict[str, STDiT3Config] = {
    "stdit3-xl": STDiT3Config(),
    "stdit3-3b": STDiT3Config(hidden_size=1872, num_heads=26),
    "stdit3-tiny": STDiT3Config(hidden_size=128, depth=4, num_heads=4),
}


def check(config: STDiT3Config) -> STDiT3Config:
    """Return the config, or refuse sizes that do not divide.

    Raises:
        UserError: If heads do not divide the width, or a width cannot carry sines and cosines.
    """
    if config.hidden_size % config.num_heads or config.head_dim % 2:
        raise UserError(
            f"{config.num_heads} heads do not divide the width into even parts",
            field="model.hidden_size",
            value=config.hidden_size,
            remedy=f"choose a multiple of {2 * config.num_heads}, or other num_heads",
        )
    if config.hidden_size % 4:
        raise UserError(
            "positions need sines and cosines for two axes, four numbers each",
            field="model.hidden_size",
            value=config.hidden_size,
            remedy="choose a multiple of 4",
        )
    return config
