"""Sizes of Qwen-Image networks; torch-free."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field

from reelworks.core.config import Config
from reelworks.models.family import ComponentShapes, Conditioning, Network


class QwenImageConfig(Config):
    """Arguments of diffusers' QwenImageTransformer2DModel; defaults are the published ones.

    `edits`: it is shown the picture that it edits.
    """

    patch_size: ClassVar[tuple[int, int, int]] = (1, 2, 2)
    pictures_only: ClassVar[bool] = True

    in_channels: int = 64
    out_channels: int = 16
    num_layers: int = 60
    attention_head_dim: int = 128
    num_attention_heads: int = 24
    joint_attention_dim: int = 3584
    axes_dims_rope: tuple[int, int, int] = (16, 56, 56)
    edits: bool = Field(default=False, exclude=True)

    @property
    def conditioning(self) -> Conditioning:
        """Captions of no words are encoded."""
        return Conditioning(takes=("source",), needs=("source",)) if self.edits else Conditioning()

    @property
    def network(self) -> Network:
        """Place of the network in diffusers."""
        return Network(
            "QwenImageTransformer2DModel", ("transformer_blocks",), without_gradient=self._last_text
        )

    def fit(self, neighbours: ComponentShapes) -> Self:
        """Take the widths of the neighbours."""
        channels = neighbours.latent_channels
        return self.model_copy(
            update={
                "in_channels": 4 * channels,
                "out_channels": channels,
                "joint_attention_dim": neighbours.text_dim,
            }
        )

    @property
    def _last_text(self) -> tuple[str, ...]:
        """The last block's text goes nowhere."""
        last = f"transformer_blocks.{self.num_layers - 1}."
        return (
            last + "txt_mlp",
            last + "attn.to_add_out",
            last + "attn.norm_added_q",
            last + "attn.add_q_proj",
        )


_TINY = QwenImageConfig(num_layers=2, attention_head_dim=16, num_attention_heads=2, axes_dims_rope=(4, 6, 6))
PRESETS: dict[str, QwenImageConfig] = {
    "qwen-image": QwenImageConfig(),
    "qwen-image-edit": QwenImageConfig(edits=True),
    "qwen-image-tiny": _TINY,
    "qwen-image-edit-tiny": _TINY.model_copy(update={"edits": True}),
}
