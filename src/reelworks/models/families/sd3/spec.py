"""Sizes of Stable Diffusion 3 networks; torch-free."""

from __future__ import annotations

from reelworks.models import family, family_file

_RELEASE_LAYERS = family.layer_rules(__file__)


class SD3Config(family.PictureConfig):
    """Arguments of diffusers' SD3Transformer2DModel; defaults are those of SD3-medium."""

    sample_size: int = 128
    in_channels: family.LatentWidth = 16
    out_channels: family.LatentWidth = 16
    num_layers: int = 24
    attention_head_dim: int = 64
    num_attention_heads: int = 24
    joint_attention_dim: family.TextWidth = 4096
    caption_projection_dim: int = 1536
    pooled_projection_dim: family.PooledWidth = 2048
    pos_embed_max_size: int = 192
    dual_attention_layers: tuple[int, ...] = ()
    qk_norm: str | None = None

    @property
    def network(self) -> family.Network:
        """Names of the network's class, blocks, parameters and files."""
        own, release = (f"{blocks}.{self.num_layers - 1}." for blocks in ("transformer_blocks", "joint_blocks"))
        # The last block's text norm has scale before shift, like the network's final norm.
        last_norm = family.KeyRule(
            own + "norm1_context.linear", release + "context_block.adaLN_modulation.1", swapped=True
        )
        return family.Network(
            "SD3Transformer2DModel",
            ("transformer_blocks",),
            without_gradient=(own + "attn.add_q_proj", own + "attn.norm_added_q"),  # of texts, whose results are unused
            lora=family.LoraNames((last_norm, *_RELEASE_LAYERS), comfyui_maps_parts=True),
        )


FAMILY = family_file.read(__package__, SD3Config)
