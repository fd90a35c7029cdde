"""Sizes of LTX-Video networks; torch-free."""

from __future__ import annotations

from typing import ClassVar, Self

from reelworks.core.config import Config
from reelworks.models.family import ComponentShapes, Conditioning, Network


class LTXConfig(Config):
    """Arguments of diffusers' LTXVideoTransformer3DModel; defaults are those of the 2B."""

    patch_size: ClassVar[tuple[int, int, int]] = (1, 1, 1)
    pictures_only: ClassVar[bool] = False
    conditioning: ClassVar[Conditioning] = Conditioning(frames=True)
    network: ClassVar[Network] = Network("LTXVideoTransformer3DModel", ("transformer_blocks",))

    in_channels: int = 128
    out_channels: int = 128
    num_attention_heads: int = 32
    attention_head_dim: int = 64
    cross_attention_dim: int = 2048
    num_layers: int = 28
    caption_channels: int = 4096

    def fit(self, neighbours: ComponentShapes) -> Self:
        """Take the widths of the neighbours."""
        channels = neighbours.latent_channels
        return self.model_copy(
            update={
                "in_channels": channels,
                "out_channels": channels,
                "caption_channels": neighbours.text_dim,
            }
        )


PRESETS: dict[str, LTXConfig] = {
    "ltx-video-2b": LTXConfig(),
    "ltx-video-13b": LTXConfig(attention_head_dim=128, cross_attention_dim=4096, num_layers=48),
    "ltx-tiny": LTXConfig(num_attention_heads=2, attention_head_dim=16, cross_attention_dim=32, num_layers=2),
}
