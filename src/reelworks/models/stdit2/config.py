"""Sizes of STDiT2 networks; torch-free."""

from __future__ import annotations

from pydantic import Field

from reelworks.core.errors import UserError
from reelworks.models.stdit3 import config as stdit3
from reelworks.models.stdit3.config import STDiT3Config


class STDiT2Config(STDiT3Config):
    """Sizes of one network; defaults are STDiT2-XL/2 as published with Open-Sora v1.1.

    The fields are STDiT3's; `depth` counts blocks, each with spatial and temporal attention.
    """

    model_max_length: int = Field(default=200, gt=0)


PRESETS: dict[str, STDiT2Config] = {
    "stdit2-xl": STDiT2Config(),
    "stdit2-tiny": STDiT2Config(hidden_size=96, depth=4, num_heads=4),
}


def check(config: STDiT2Config) -> STDiT2Config:
    """Return the config, or refuse sizes that do not divide.

    Raises:
        UserError: If heads do not divide the width, or height, width and aspect ratio cannot share it.
    """
    stdit3.check(config)
    if config.hidden_size % 3:
        raise UserError(
            "height, width and aspect ratio share the width in three equal parts",
            field="model.hidden_size",
            value=config.hidden_size,
            remedy="choose a multiple of 12",
        )
    return config
