"""Sizes of FLUX.2 networks; torch-free."""

from __future__ import annotations

from typing import ClassVar, Self

from reelworks.core.config import Config
from reelworks.models.family import ComponentShapes, Conditioning, Network


class Flux2Config(Config):
    """Arguments of diffusers' Flux2Transformer2DModel; defaults are those of FLUX.2-dev."""

    patch_size: ClassVar[tuple[int, int, int]] = (1, 1, 1)
    pictures_only: ClassVar[bool] = True
    network: ClassVar[Network] = Network(
        "Flux2Transformer2DModel", ("transformer_blocks", "single_transformer_blocks")
    )

    in_channels: int = 128
    num_layers: int = 8
    num_single_layers: int = 48
    attention_head_dim: int = 128
    num_attention_heads: int = 48
    joint_attention_dim: int = 15360
    guidance_embeds: bool = True
    axes_dims_rope: tuple[int, int, int, int] = (32, 32, 32, 32)

    @property
    def conditioning(self) -> Conditioning:
        """Captions of no words are encoded; a distilled network takes the guidance scale."""
        return Conditioning(
            guidance="embedded" if self.guidance_embeds else "classifier-free", takes=("source",)
        )

    def fit(self, neighbours: ComponentShapes) -> Self:
        """Take the widths of the neighbours."""
        return self.model_copy(
            update={"in_channels": neighbours.latent_channels, "joint_attention_dim": neighbours.text_dim}
        )


PRESETS: dict[str, Flux2Config] = {
    "flux2-dev": Flux2Config(),
    "flux2-tiny": Flux2Config(
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        axes_dims_rope=(4, 4, 4, 4),
    ),
}
