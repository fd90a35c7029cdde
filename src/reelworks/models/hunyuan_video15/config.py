"""Sizes of HunyuanVideo 1.5 networks; torch-free."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field

from reelworks.core.config import Config
from reelworks.models.family import ComponentShapes, Conditioning, Network


class HunyuanVideo15Config(Config):
    """Arguments of diffusers' HunyuanVideo15Transformer3DModel; defaults are the published ones.

    The input has room for a given picture and its mask, which are zeros unless there is a `first_frame`.
    """

    patch_size: ClassVar[tuple[int, int, int]] = (1, 1, 1)
    pictures_only: ClassVar[bool] = False

    in_channels: int = 65
    out_channels: int = 32
    num_attention_heads: int = 16
    attention_head_dim: int = 128
    num_layers: int = 54
    num_refiner_layers: int = 2
    text_embed_dim: int = 3584
    text_embed_2_dim: int = 1472
    image_embed_dim: int = 1152
    rope_axes_dim: tuple[int, int, int] = (16, 56, 56)
    first_frame: bool = Field(default=False, exclude=True)

    @property
    def conditioning(self) -> Conditioning:
        """Captions of no words are encoded."""
        if not self.first_frame:
            return Conditioning()
        return Conditioning(first_frame="alone", image_encoder="siglip", image_dim=self.image_embed_dim)

    @property
    def network(self) -> Network:
        """Place of the network in diffusers."""
        return Network(
            "HunyuanVideo15Transformer3DModel",
            ("transformer_blocks",),
            without_gradient=("context_embedder_2.", *self._image, *self._last_text),
            shape_only=False,
        )

    def fit(self, neighbours: ComponentShapes) -> Self:
        """Take the widths of the neighbours."""
        channels = neighbours.latent_channels
        return self.model_copy(
            update={
                "in_channels": 2 * channels + 1,
                "out_channels": channels,
                "text_embed_dim": neighbours.text_dim,
            }
        )

    @property
    def _image(self) -> tuple[str, ...]:
        """Embed no picture where none is given."""
        return () if self.first_frame else ("image_embedder.",)

    @property
    def _last_text(self) -> tuple[str, ...]:
        """The last block's text goes nowhere."""
        last = f"transformer_blocks.{self.num_layers - 1}."
        return (
            last + "ff_context",
            last + "attn.to_add_out",
            last + "attn.norm_added_q",
            last + "attn.add_q_proj",
        )


_TINY = HunyuanVideo15Config(
    num_attention_heads=2,
    attention_head_dim=16,
    num_layers=2,
    num_refiner_layers=1,
    text_embed_2_dim=8,
    image_embed_dim=16,
    rope_axes_dim=(4, 6, 6),
)
PRESETS: dict[str, HunyuanVideo15Config] = {
    "hunyuan-video-1.5": HunyuanVideo15Config(),
    "hunyuan-video-1.5-i2v": HunyuanVideo15Config(first_frame=True),
    "hunyuan-video-1.5-tiny": _TINY,
    "hunyuan-video-1.5-i2v-tiny": _TINY.model_copy(update={"first_frame": True}),
}
