"""Sizes, components and published releases of STDiT2 networks; torch-free."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import ClassVar, Self

from pydantic import Field

from reelworks.core.errors import UserError
from reelworks.models import family
from reelworks.models.families.stdit3.spec import RECIPE_SIZES, RELEASE, STDiT3Config


class STDiT2Config(STDiT3Config):
    """Sizes of an STDiT2 network; defaults are STDiT2-XL/2 as published with Open-Sora v1.1.

    The fields are STDiT3's; `depth` counts blocks, each with spatial and temporal attention.
    """

    network: ClassVar[family.Network] = family.Network(
        "STDiT2", ("blocks",), pads_patches=True, sequence=family.SequenceSplit("num_heads", pads=True)
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


_preset = partial(
    family.Preset,
    parts=family.Parts("opensora-1.1", "t5"),
    sampling=family.SamplingDefaults(7.0, 100, guided_channels=3),  # of Open-Sora's configs
)
_RELEASE = replace(
    RELEASE, weights="hpcai-tech/OpenSora-STDiT-v2-stage3", autoencoder="stabilityai/sd-vae-ft-ema", objective="iddpm"
)
FAMILY = family.Family(
    name="stdit2",
    network=f"{__package__}.network",
    presets={
        "stdit2-xl": _preset(STDiT2Config(), release=_RELEASE),
        "stdit2-tiny": _preset(STDiT2Config(hidden_size=96, depth=4, num_heads=4)),
    },
    short_names={"stdit2": "stdit2-xl"},
    recipe_sizes=RECIPE_SIZES,
)
