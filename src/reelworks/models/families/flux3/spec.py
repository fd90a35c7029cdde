"""Sizes of FLUX.3 networks; torch-free."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from reelworks.models import family, family_file

_SOURCE_BLOCKS = "mode_blocks.image_cond"
_SOURCE_LAYERS = tuple(f"{kind}_stream_modulations.image_cond" for kind in ("early", "single"))
_BLOCK = {
    "attn.to_q": "q_proj",
    "attn.to_k": "k_proj",
    "attn.to_v": "v_proj",
    "attn.to_out.0": "attn_out",
    "ff.linear_in": "mlp_in",
    "ff.linear_out": "mlp_out",
}
_RELEASE_LAYERS = (
    *family.release_blocks("mode_blocks.image", "content_mode_blocks.image", _BLOCK),
    *family.release_blocks(_SOURCE_BLOCKS, "content_mode_blocks.image_cond", _BLOCK),
    *family.release_blocks("txt_mode_blocks", "txt_mode_blocks", _BLOCK),
    *family.release_blocks("single_transformer_blocks", "single_blocks", _BLOCK),
    *(
        family.KeyRule(f"{kind}_stream_modulations.{mode}.linear", f"{kind}_stream_modulations.{mode}.lin")
        for kind in ("early", "single")
        for mode in ("image", "image_cond", "txt")
    ),
    *(family.KeyRule(f"timestep_embedder.linear_{i}", f"time_in.{side}_layer") for i, side in ((1, "in"), (2, "out"))),
    family.KeyRule("x_embedders.*", "emb_in.*"),
    family.KeyRule("context_embedder", "txt_in"),
    family.KeyRule("norm_out.linear", "final_layer.image.adaLN_modulation.1", swapped=True),
    family.KeyRule("proj_out", "final_layer.image.linear"),
)


class Flux3Config(family.NetworkConfig):
    """Arguments of diffusers' Flux3Transformer2DModel; defaults are those of FLUX.3 Image Klein Base.

    `edits`: source pictures of an edit are inputs. A network that is not shown any keeps its layers for sources.
    """

    patch_size: ClassVar[tuple[int, int, int]] = (1, 1, 1)
    pictures_only: ClassVar[bool] = True

    in_channels: family.LatentWidth = 128
    cond_in_channels: family.LatentWidth = 128
    num_layers: int = 5
    num_single_layers: int = 28
    attention_head_dim: int = 128
    num_attention_heads: int = 24
    joint_attention_dim: family.TextWidth = 20480
    axes_dims_rope: tuple[int, int, int, int] = (32, 32, 32, 32)
    edits: bool = Field(default=False, exclude=True)

    @property
    def conditioning(self) -> family.Conditioning:
        """Conditioning of the network; empty captions are encoded."""
        return family.EDITS if self.edits else family.Conditioning()

    @property
    def network(self) -> family.Network:
        """Names of the network's class, blocks, parameters and files."""
        sources = (_SOURCE_BLOCKS,) if self.edits else ()
        unused = () if self.edits else (f"{_SOURCE_BLOCKS}.", "x_embedders.image_cond.", *_SOURCE_LAYERS)
        return family.Network(
            "Flux3Transformer2DModel",
            ("txt_mode_blocks", "mode_blocks.image", *sources, "single_transformer_blocks"),
            without_gradient=unused,
            lora=family.LoraNames(_RELEASE_LAYERS),
            passes=family.PassRules(caption_multiple=80),
        )


FAMILY = family_file.read(__package__, Flux3Config)
