"""Sizes of FLUX.1 networks; torch-free."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field

from reelworks.core.config import Config
from reelworks.models.family import ComponentShapes, Conditioning, Network, require_pooled


class FluxConfig(Config):
    """Arguments of diffusers' FluxTransformer2DModel; defaults are those of FLUX.1-dev.

    `companion`: "control" comes in channels beside the noise, as in FLUX.1-Canny and -Depth; "source" in tokens
    behind it, as in FLUX.1-Kontext.
    """

    patch_size: ClassVar[tuple[int, int, int]] = (1, 2, 2)
    pictures_only: ClassVar[bool] = True
    network: ClassVar[Network] = Network(
        "FluxTransformer2DModel",
        ("transformer_blocks", "single_transformer_blocks"),
        widened="x_embedder.weight",
    )

    in_channels: int = 64
    out_channels: int = 64
    num_layers: int = 19
    num_single_layers: int = 38
    attention_head_dim: int = 128
    num_attention_heads: int = 24
    joint_attention_dim: int = 4096
    pooled_projection_dim: int = 768
    guidance_embeds: bool = True
    axes_dims_rope: tuple[int, int, int] = (16, 56, 56)
    companion: Literal["control", "source"] | None = Field(default=None, exclude=True)

    @property
    def conditioning(self) -> Conditioning:
        """Captions of no words are encoded; a distilled network takes the guidance scale."""
        return Conditioning(
            guidance="embedded" if self.guidance_embeds else "classifier-free",
            takes=() if self.companion is None else (self.companion,),
            needs=("control",) if self.companion == "control" else (),
        )

    def fit(self, neighbours: ComponentShapes) -> Self:
        """Take the widths of the neighbours."""
        channels = 4 * neighbours.latent_channels
        return self.model_copy(
            update={
                "in_channels": 2 * channels if self.companion == "control" else channels,
                "out_channels": channels,
                "joint_attention_dim": neighbours.text_dim,
                "pooled_projection_dim": require_pooled(neighbours),
            }
        )


_TINY = FluxConfig(
    num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2, axes_dims_rope=(4, 6, 6)
)
PRESETS: dict[str, FluxConfig] = {
    "flux-dev": FluxConfig(),
    "flux-schnell": FluxConfig(guidance_embeds=False),
    "flux-control": FluxConfig(in_channels=128, companion="control"),
    "flux-kontext": FluxConfig(companion="source"),
    "flux-tiny": _TINY,
    "flux-control-tiny": _TINY.model_copy(update={"in_channels": 128, "companion": "control"}),
    "flux-kontext-tiny": _TINY.model_copy(update={"companion": "source"}),
}
