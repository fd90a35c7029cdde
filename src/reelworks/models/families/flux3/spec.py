"""Sizes of FLUX.3 networks; torch-free."""

from __future__ import annotations

from typing import ClassVar

from reelworks.models import family, family_file

_SOURCE_BLOCKS = "mode_blocks.image_cond"
_SOURCE_LAYERS = tuple(f"{kind}_stream_modulations.image_cond" for kind in ("early", "single"))


class Flux3Config(family.EditingConfig):
    """Arguments of diffusers' Flux3Transformer2DModel; defaults are those of FLUX.3 Image Klein Base.

    `edits`: source pictures of an edit are inputs. A network that is not shown any keeps its layers for sources.
    """

    patch_size: ClassVar[tuple[int, int, int]] = (1, 1, 1)

    in_channels: family.LatentWidth = 128
    cond_in_channels: family.LatentWidth = 128
    num_layers: int = 5
    num_single_layers: int = 28
    attention_head_dim: int = 128
    num_attention_heads: int = 24
    joint_attention_dim: family.TextWidth = 20480
    axes_dims_rope: tuple[int, int, int, int] = (32, 32, 32, 32)

    @property
    def network(self) -> family.Network:
        """Names of the network's class, blocks, parameters and files."""
        sources = (_SOURCE_BLOCKS,) if self.edits else ()
        unused = () if self.edits else (f"{_SOURCE_BLOCKS}.", "x_embedders.image_cond.", *_SOURCE_LAYERS)
        return family.Network(
            "Flux3Transformer2DModel",
            ("txt_mode_blocks", "mode_blocks.image", *sources, "single_transformer_blocks"),
            without_gradient=unused,
            lora=family.LoraNames(family.layer_rules(__file__)),
            passes=family.PassRules(caption_multiple=80),
        )


FAMILY = family_file.read(__package__, Flux3Config)
