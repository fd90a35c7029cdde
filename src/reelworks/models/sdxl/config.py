"""Sizes of Stable Diffusion XL networks; torch-free."""

from __future__ import annotations

from typing import ClassVar, Self

from reelworks.core.config import Config
from reelworks.models.family import ComponentShapes, Conditioning, Network, require_pooled


class SDXLConfig(Config):
    """Arguments of diffusers' UNet2DConditionModel; defaults are those of SDXL base.

    Six sizes are told as sines and cosines of width `addition_time_embed_dim`.
    """

    pictures_only: ClassVar[bool] = True
    conditioning: ClassVar[Conditioning] = Conditioning(objectives=("epsilon", "v-prediction"))
    network: ClassVar[Network] = Network("UNet2DConditionModel", ("down_blocks", "up_blocks"), part="unet")

    sample_size: int = 128
    in_channels: int = 4
    out_channels: int = 4
    down_block_types: tuple[str, ...] = ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D")
    up_block_types: tuple[str, ...] = ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D")
    block_out_channels: tuple[int, ...] = (320, 640, 1280)
    layers_per_block: int = 2
    norm_num_groups: int = 32
    cross_attention_dim: int = 2048
    transformer_layers_per_block: tuple[int, ...] = (1, 2, 10)
    attention_head_dim: tuple[int, ...] = (5, 10, 20)
    use_linear_projection: bool = True
    addition_embed_type: str = "text_time"
    addition_time_embed_dim: int = 256
    projection_class_embeddings_input_dim: int = 2816

    @property
    def patch_size(self) -> tuple[int, int, int]:
        """Latent elements per token."""
        return 1, self._downscale, self._downscale

    def fit(self, neighbours: ComponentShapes) -> Self:
        """Take the widths of the neighbours."""
        channels, pooled = neighbours.latent_channels, require_pooled(neighbours)
        return self.model_copy(
            update={
                "in_channels": channels,
                "out_channels": channels,
                "cross_attention_dim": neighbours.text_dim,
                "projection_class_embeddings_input_dim": pooled + 6 * self.addition_time_embed_dim,
            }
        )

    @property
    def _downscale(self) -> int:
        """Sizes that its levels halve without a rest."""
        return int(2 ** (len(self.block_out_channels) - 1))


PRESETS: dict[str, SDXLConfig] = {
    "sdxl": SDXLConfig(),
    "sdxl-tiny": SDXLConfig(
        sample_size=16,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        block_out_channels=(16, 32),
        layers_per_block=1,
        norm_num_groups=4,
        transformer_layers_per_block=(1, 1),
        attention_head_dim=(2, 2),
        addition_time_embed_dim=8,
    ),
}
