"""Sizes of STDiT2 networks; torch-free."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field

from reelworks.core.errors import UserError
from reelworks.models import family, family_file
from reelworks.models.families.stdit3.spec import STDiT3Config


class STDiT2Config(STDiT3Config):
    """Sizes of an STDiT2 network; defaults are STDiT2-XL/2 as published with Open-Sora v1.1.

    The fields are STDiT3's; `depth` counts blocks, each with spatial and temporal attention.
    """

    network: ClassVar[family.Network] = family.Network(
        "STDiT2",
        ("blocks",),
        passes=family.PassRules(pads_patches=True),
        sequence=family.SequenceSplit("num_heads", ("depth",), pads=True),
    )

    model_max_length: int = Field(default=200, gt=0)

    def fit(self, components: family.ComponentShapes) -> Self:
        """Return a copy with the widths of the components; sizes that do not divide are refused."""
        fitted = super().fit(components)
        if fitted.hidden_size % 3:
            raise UserError(
                "embeddings of height, width and aspect ratio each take a third of the width",
                code="sizes-do-not-divide",
                field="model.hidden_size",
                value=fitted.hidden_size,
                remedy="choose a multiple of 12",
            )
        return fitted


FAMILY = family_file.read(__package__, STDiT2Config)
