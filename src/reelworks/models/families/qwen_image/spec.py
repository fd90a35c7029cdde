"""Sizes of Qwen-Image networks; torch-free."""

from __future__ import annotations

from pydantic import Field

from reelworks.models import family, family_file


class QwenImageConfig(family.PictureConfig):
    """Arguments of diffusers' QwenImageTransformer2DModel; defaults are the published ones.

    `most_sources`: number of pictures that an edit may have as inputs, at least one; 0 if it takes none.
    """

    in_channels: family.SquareWidth = 64
    out_channels: family.LatentWidth = 16
    num_layers: int = 60
    attention_head_dim: int = 128
    num_attention_heads: int = 24
    joint_attention_dim: family.TextWidth = 3584
    axes_dims_rope: tuple[int, int, int] = (16, 56, 56)
    zero_cond_t: bool = False
    most_sources: int = Field(default=0, exclude=True)

    @property
    def conditioning(self) -> family.Conditioning:
        """Conditioning of the network; empty captions are encoded."""
        takes = (
            family.Companions(("source",), ("source",), self.most_sources) if self.most_sources else family.Companions()
        )
        return family.Conditioning(companions=takes, guided_length="kept")

    @property
    def network(self) -> family.Network:
        """Names of the network's class, blocks, parameters and files."""
        # The last block's results for texts are not used.
        parts = ("txt_mlp", "attn.to_add_out", "attn.norm_added_q", "attn.add_q_proj")
        unused = tuple(f"transformer_blocks.{self.num_layers - 1}.{part}" for part in parts)
        return family.Network(
            "QwenImageTransformer2DModel",
            ("transformer_blocks",),
            without_gradient=unused,
            sequence=family.SequenceSplit(captions=True),
        )


FAMILY = family_file.read(__package__, QwenImageConfig)
