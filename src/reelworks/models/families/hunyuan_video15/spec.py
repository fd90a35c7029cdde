"""Sizes of HunyuanVideo 1.5 networks; torch-free."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field

from reelworks.models import family, family_file
from reelworks.models.families.flux import spec as flux

FILES = family.NetworkFiles(renamed_keys=family.layers_file(__file__)["renamed_keys"])
RELEASE_LAYERS = (*family.layer_rules(__file__), *flux.RELEASE_LAYERS)
TRAINERS_LAYERS = family.layer_rules(__file__, "trainers")
_MUSUBI_LAYERS = family.layer_rules(__file__, "musubi")


class HunyuanVideo15Config(family.NetworkConfig):
    """Arguments of diffusers' HunyuanVideo15Transformer3DModel; defaults are the published ones.

    The input has channels for a condition picture and its mask, which are zeros unless `first_frame` is set.
    """

    patch_size: ClassVar[tuple[int, int, int]] = (1, 1, 1)

    in_channels: int = 65
    out_channels: family.LatentWidth = 32
    num_attention_heads: int = 16
    attention_head_dim: int = 128
    num_layers: int = 54
    num_refiner_layers: int = 2
    text_embed_dim: family.TextWidth = 3584
    text_embed_2_dim: int = 1472
    image_embed_dim: int = 1152
    rope_axes_dim: tuple[int, int, int] = (16, 56, 56)
    first_frame: bool = Field(default=False, exclude=True)

    @property
    def conditioning(self) -> family.Conditioning:
        """Conditioning of the network; empty captions are encoded."""
        if not self.first_frame:
            return family.Conditioning()
        return family.Conditioning(shown=family.ShownFrames("alone", encoder="siglip", width=self.image_embed_dim))

    @property
    def network(self) -> family.Network:
        """Names of the network's class, blocks, parameters and files."""
        # The last block's results for texts are not used.
        parts = ("ff_context", "attn.to_add_out", "attn.norm_added_q", "attn.add_q_proj")
        unused = ["context_embedder_2.", *(f"transformer_blocks.{self.num_layers - 1}.{part}" for part in parts)]
        if not self.first_frame:
            unused.append("image_embedder.")
        return family.Network(
            "HunyuanVideo15Transformer3DModel",
            ("transformer_blocks",),
            without_gradient=tuple(unused),
            files=FILES,
            lora=family.LoraNames(RELEASE_LAYERS, (*TRAINERS_LAYERS, *_MUSUBI_LAYERS)),
            sequence=family.SequenceSplit(pads=True, divided=f"{__package__}.divided_tokens"),
        )

    def fit(self, components: family.ComponentShapes) -> Self:
        """Return a copy with the widths of the components."""
        return super().fit(components).model_copy(update={"in_channels": 2 * components.latent_channels + 1})


FAMILY = family_file.read(__package__, HunyuanVideo15Config)
