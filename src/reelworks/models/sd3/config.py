"""Sizes of Stable Diffusion 3 networks; torch-free."""

from __future__ import annotations

from typing import ClassVar, Self

from reelworks.core.config import Config
from reelworks.models.family import ComponentShapes, Conditioning, Network, require_pooled


class SD3Config(Config):
    """Arguments of diffusers' SD3Transformer2DModel; defaults are those of SD3-medium."""

    patch_size: ClassVar[tuple[int, int, int]] = (1, 2, 2)
    pictures_only: ClassVar[bool] = True
    conditioning: ClassVar[Conditioning] = Conditioning()

    sample_size: int = 128
    in_channels: int = 16
    out_channels: int = 16
    num_layers: int = 24
    attention_head_dim: int = 64
    num_attention_heads: int = 24
    joint_attention_dim: int = 4096
    caption_projection_dim: int = 1536
    pooled_projection_dim: int = 2048
    pos_embed_max_size: int = 192
    dual_attention_layers: tuple[int, ...] = ()
    qk_norm: str | None = None

    @property
    def network(self) -> Network:
        """Place of the network in diffusers."""
        return Network("SD3Transformer2DModel", ("transformer_blocks",), without_gradient=self._last_text)

    def fit(self, neighbours: ComponentShapes) -> Self:
        """Take the widths of the neighbours."""
        channels = neighbours.latent_channels
        return self.model_copy(
            update={
                "in_channels": channels,
                "out_channels": channels,
                "joint_attention_dim": neighbours.text_dim,
                "pooled_projection_dim": require_pooled(neighbours),
            }
        )

    @property
    def _last_text(self) -> tuple[str, ...]:
        """The last block does not ask its text."""
        last = f"transformer_blocks.{self.num_layers - 1}."
        return last + "attn.add_q_proj", last + "attn.norm_added_q"


PRESETS: dict[str, SD3Config] = {
    "sd3-medium": SD3Config(),
    "sd3.5-medium": SD3Config(
        dual_attention_layers=tuple(range(13)), qk_norm="rms_norm", pos_embed_max_size=384
    ),
    "sd3.5-large": SD3Config(
        num_layers=38, num_attention_heads=38, caption_projection_dim=2432, qk_norm="rms_norm"
    ),
    "sd3-tiny": SD3Config(
        sample_size=16,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        caption_projection_dim=32,
        pos_embed_max_size=32,
        qk_norm="rms_norm",
    ),
}
